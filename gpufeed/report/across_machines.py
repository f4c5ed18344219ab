"""Runs of different machines side by side: each pipeline's share of the ceiling of its own machine.

Images/s of two GPU models never stand in one row, and no ratio is taken between them: what carries over from
one machine to another is how far a pipeline is from what its own GPU could train.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from gpufeed.core.errors import GpufeedError
from gpufeed.core.folders import records_below
from gpufeed.report import tables
from gpufeed.report.comparison_text import aligned, piped
from gpufeed.report.load_records import read_records
from gpufeed.report.wording import count, machine, percent
from gpufeed.system.statistics import BUSY

COLUMNS = [
    "experiment", "cell_id", "machine", "precision", "ceiling_share", "against_ceiling", "n_repeats",
    "ceiling_n_repeats",
]  # fmt: skip
MARKS = {"below": "", "not distinguishable": " ~", "above": " ^", "disturbed": " !", BUSY: " ?"}
LEGEND = (
    "Shares are of the same machine's own limit (replay), medians over n repeats. ~: its range touches that "
    "of the limit; ^: above it by up to 5 %; !: above it by more, so one of the two was disturbed; ?: "
    "repeats too far apart to tell, on a busy machine; -: not measured, or no limit was."
)


@dataclass(frozen=True)
class Across:
    """shares: COLUMNS, a row a pipeline and machine. ceilings: the cells that are one.

    without: machine -> number of its pipelines that have no ceiling measured on the same work there.
    """

    shares: pd.DataFrame
    ceilings: pd.DataFrame
    without: dict[str, int]


def across(folders: Iterable[str | Path], experiments: Iterable[str] = ()) -> Across:
    """Compare the pipelines of all these folders; of these experiments only, if any is named.

    Folders of the same machine (hardware, stack and torch) are one. Raises GpufeedError for a folder without
    records, and where no ceiling was measured.
    """
    records = read_records(dict.fromkeys(path for folder in folders for path in records_below(folder)))
    names = set(experiments)
    cells = tables.measured(tables.cells(records[records["experiment"].isin(names)] if names else records))
    cells["machine"] = [machine(cells.loc[[index]]) for index in cells.index]
    pipelines = tables.pipelines(cells)
    shares = pipelines[pipelines["ceiling_share"].notna()]
    without = pipelines.loc[pipelines["ceiling_share"].isna(), "machine"].value_counts(sort=False)
    if shares.empty:
        raise GpufeedError(
            "no pipeline with a limit in these folders",
            "finished repeats of a pipeline and of loader replay with the same work, on the same machine",
            "measure the experiment's replay cells too",
        )
    return Across(shares[COLUMNS], cells.drop(pipelines.index), without.to_dict())


def text(found: Across) -> str:
    """Return both tables as text for a terminal."""
    parts = [aligned(*_shares(found)), *_notes(found), aligned(*_ceilings(found))]
    return "\n\n".join([_legend_of_machines(found), *parts]) + "\n"


def markdown(found: Across) -> str:
    """Return both tables as Markdown."""
    listed = "\n".join(f"- {line}" for line in _legend_of_machines(found).splitlines())
    parts = ["## Machines side by side", listed, piped(*_shares(found)), *_notes(found)]
    return "\n\n".join([*parts, "### Their limits", piped(*_ceilings(found))]) + "\n"


def _notes(found: Across) -> list[str]:
    """Explain the table of shares, and count the pipelines that are not in it."""
    counts = "; ".join(f"{number} on {machine}" for machine, number in found.without.items())
    return [LEGEND, *([f"Left out, because no limit was measured: {counts}."] if counts else [])]


def _names(found: Across) -> dict[str, str]:
    """Return machine -> the number at the head of its column."""
    return {machine: f"[{number}]" for number, machine in enumerate(found.shares["machine"].unique(), 1)}


def _legend_of_machines(found: Across) -> str:
    return "\n".join(f"{name} {machine}" for machine, name in _names(found).items())


def _shares(found: Across) -> tuple[list[str], list[list[str]], list[int]]:
    """Return headings, rows and the columns of numbers: a row a pipeline, a column a machine."""
    names = _names(found)
    rows = [
        [*(_share(of, machine) for machine in names), f"{experiment}/{cell_id}"]
        for (experiment, cell_id), of in found.shares.groupby(["experiment", "cell_id"], sort=False)
    ]
    return [*names.values(), "share of its own limit"], rows, list(range(len(names)))


def _share(of: pd.DataFrame, machine: str) -> str:
    """Return one pipeline's share on one machine, with its precision if machines differ in that."""
    here = of[of["machine"] == machine]
    if here.empty:
        return "-"
    row = here.iloc[0]
    precision = f" {row['precision']}" if of["precision"].nunique() > 1 else ""
    mark = MARKS[row["against_ceiling"]]
    return f"{percent(row['ceiling_share'])}{mark}{precision} (n = {row['n_repeats']})"


def _ceilings(found: Across) -> tuple[list[str], list[list[str]], list[int]]:
    """Return the table of limits: headings, one row a limit of one machine, and right-aligned columns."""
    names = _names(found)
    rows = [
        [names[row["machine"]], count(row["images_per_s"]), str(row["n_repeats"]), row["precision"],
         f"{row['experiment']}/{row['cell_id']}"]
        for _, row in found.ceilings.iterrows()
        if row["machine"] in names
    ]  # fmt: skip
    return ["machine", "limit, images/s", "n", "precision", "cell"], rows, [1, 2]
