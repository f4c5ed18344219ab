"""What the records say of their datasets: samples, files that were left out as broken, builders of caches."""

from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class DatasetRow:
    """One dataset, by the newest record that tells of it. caches: decoders that built any, with version.

    filesystems: on which what the loaders read lay, in records that tell.
    """

    dataset: str
    samples: int
    quarantined: int
    examples: list[dict]
    caches: list[str]
    filesystems: list[str]

    @property
    def unnamed(self) -> int:
        """Quarantined files that the record does not name."""
        return self.quarantined - len(self.examples)


def rows(records: pd.DataFrame) -> list[DatasetRow]:
    """One row a dataset with a finished record that tells of it, in the order of the records."""
    told = records[records["facts"].map(lambda facts: isinstance(facts, dict)).astype(bool)]
    found = []
    for dataset, ours in told.groupby("dataset", sort=False):
        newest = ours.loc[ours["finished_at"].sort_values(kind="stable").index[-1], "facts"]
        found.append(
            DatasetRow(
                dataset=dataset,
                samples=newest["samples"],
                quarantined=newest["quarantined"],
                examples=newest["examples"],
                caches=sorted({facts["cache"] for facts in ours["facts"] if facts["cache"]}),
                filesystems=sorted({kind for facts in ours["facts"] if (kind := facts.get("filesystem"))}),
            )
        )
    return found
