"""Where the seconds of a repeat go: from the start of its process to its record."""

from dataclasses import dataclass

import pandas as pd

from gpufeed.report import tables, wording
from gpufeed.report.sections import leaderboard


@dataclass(frozen=True)
class Part:
    """A part of a repeat. field: of the record's `phases`; empty for what is left of the whole.

    colour: number of its class in report.css.
    """

    title: str
    field: str
    what: str
    colour: int


UNPACK = "unpack_s"  # of packed datasets alone: without any its column is left out
PARTS = [
    Part(
        "Start", "start_s", "The interpreter and Snakemake's preamble, up to the first line of our script.", 0
    ),
    Part("Import", "import_s", "Importing torch and what else every cell needs.", 1),
    Part(
        "Unpack",
        UNPACK,
        "Until the files of a packed dataset were at hand on the node: unpacking or finding them.",
        7,
    ),
    Part(
        "Load",
        "load_s",
        "The device found, manifest and cache opened, loader made, model built; what a loader imports by "
        "itself is in it.",
        2,
    ),
    Part("Compile", "compile_s", "Making the step: torch.compile, cuDNN's search, warm-up, CUDA graphs.", 3),
    Part(
        "Measure", "run_s", "All epochs, from the first request for a batch to the end of the last step.", 4
    ),
    Part("Evaluate", "evaluation_s", "Accuracy on the held-out images, after the last epoch.", 5),
    Part(
        "Rest",
        "",
        "What lies between these: closing the loader, asking for versions and clocks; of several devices the "
        "start of their processes.",
        6,
    ),
]


def section(cells: pd.DataFrame, records: pd.DataFrame) -> dict | None:
    """Return what the page shows of one experiment; None if no record has phases (older versions)."""
    known = split(records)
    if known.empty:
        return None
    keys = tables.IDENTITY[1:]
    rows = known.merge(leaderboard.in_order(cells)[[*keys, "label", "task"]], on=keys)
    rows = rows.sort_values("wall_s", ascending=False)
    both = zip(rows["label"], wording.split_shared(rows["task"])[1], strict=True)
    names = pd.Series([", ".join(filter(None, parts)) for parts in both], index=rows.index)
    rows["label"] = wording.made_unique(names, rows)
    shown = [part for part in PARTS if part.field != UNPACK or known[UNPACK].any()]
    longest, fields = rows["wall_s"].max(), [part.field for part in shown]
    return {
        "sentence": sentence(known),
        "parts": shown,
        "rows": [
            {
                "label": row["label"],
                "n": int(row["n"]),
                "seconds": [wording.three_figures(row[field]) if row[field] else "0" for field in fields],
                "whole": wording.three_figures(row["wall_s"]),
                "widths": [100 * row[field] / longest for field in fields],
            }
            for _, row in rows.iterrows()
        ],
    }


def split(records: pd.DataFrame) -> pd.DataFrame:
    """Return mean seconds of each of PARTS, `wall_s` and n, a row a cell and machine with phases.

    A part that a repeat did not have, as an evaluation, counts 0.
    """
    tells = records["phases"].map(lambda one: isinstance(one, dict) and {"wall_s", "start_s"} <= set(one))
    known = records[tells.astype(bool)]
    keys, fields = tables.IDENTITY[1:], [part.field for part in PARTS if part.field]
    seconds = pd.DataFrame(known["phases"].tolist(), known.index).reindex(columns=[*fields, "wall_s"])
    seconds = seconds.astype(float).fillna(0.0)
    seconds[""] = (seconds["wall_s"] - seconds[fields].sum(axis=1)).clip(lower=0)
    groups = known[keys].join(seconds).groupby(keys, dropna=False, sort=False)
    return groups.mean().assign(n=groups.size()).reset_index()


def sentence(known: pd.DataFrame) -> str:
    """Return how long a repeat takes, and how much of that is measured."""
    total = (known["wall_s"] * known["n"]).sum()
    shares = {part.title: (known[part.field] * known["n"]).sum() / total for part in PARTS}
    measured = shares.pop("Measure")
    most = max(shares, key=shares.get)
    low, high = known["wall_s"].min(), known["wall_s"].max()
    return (
        f"A repeat takes {wording.three_figures(low)} to {wording.three_figures(high)} s from the start of "
        f"its process to its record. {wording.percent(measured)} of all that time is measurement; of the "
        f"rest, most goes into {most.lower()} ({wording.percent(shares[most])})."
    )
