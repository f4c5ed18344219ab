"""Compare two pipelines: mean time of each phase, the time that the second saves by two totals, figures.

The notebook on pipelining starts its total when the batch has arrived. That leaves out the wait for data,
which is what workers save. So this module reports both: the notebook's total and the whole one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from gpufeed.core.plan_side_by_side import PARTS, TOTAL_SAYS, line, words
from gpufeed.report import style, tables, wording
from gpufeed.report.claims import FASTER_FROM, FASTER_TO, OPEN, judged
from gpufeed.system.statistics import summarise

MACHINE = ["device", "hardware", "stack", "torch"]
OWN, WHOLE = "own_ms", "total_ms"
TOTALS = {
    OWN: "notebook's own total (transfer and train, without the wait for data)",
    WHOLE: "whole total (with the wait for data)",
}
COLUMNS = ["pipeline", "cell_id", "repeat", *MACHINE, "batches", *PARTS.values(), OWN]
CAPTIONS = (
    "Mean milliseconds a batch of each phase, and of the whole batch; medians over the repeats.",
    "Mean milliseconds a batch, the wait for data included; medians over the repeats, whiskers: their range.",
)
NOTHING = "No comparison: no machine has a finished repeat of both pipelines."
REST = (
    "Its other claims (4 to 8 workers are best; the GPU never waits) need a sweep of workers: "
    "see experiment pipelining."
)


@dataclass(frozen=True)
class Saved:
    """Time that the second pipeline saves by one total. speedup, ms: `summarise` over pairs of repeats."""

    total: str
    speedup: Mapping[str, float]
    ms: Mapping[str, float]  # per batch; the same number is seconds per 1,000 batches

    @property
    def answer(self) -> str:
        """Judge the notebook's claim, 1.5 to 3 times as fast, by this total."""
        if self.speedup["n"] < 2:
            return OPEN
        return judged(self.speedup["min"], self.speedup["max"], FASTER_FROM, FASTER_TO)


def means(records: pd.DataFrame, steps: pd.DataFrame, pair: Mapping[str, str]) -> pd.DataFrame:
    """Return one row per repeat (COLUMNS): means over its batches, the first one included.

    pair: block -> id of its cell. The wait of the first batch includes the start of the workers.
    """
    of = {cell: words(block) for block, cell in pair.items()}
    rows = tables.waited_for(records, steps, ["cell_id", "repeat", *MACHINE])
    rows = rows[rows["cell_id"].isin(of)]
    groups = rows.groupby(["cell_id", "repeat", *MACHINE], dropna=False, sort=False)
    table = groups[list(PARTS.values())].mean().assign(batches=groups.size()).reset_index()
    table["pipeline"] = table["cell_id"].map(of)
    table[OWN] = table["transfer_ms"] + table["train_ms"]
    order = {name: place for place, name in enumerate(of.values())}
    return table.sort_values(["pipeline", "repeat"], key=lambda own: own.map(order).fillna(own))[COLUMNS]


def machines(table: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the rows of each machine that has repeats of both pipelines."""
    groups = (rows for _, rows in table.groupby(MACHINE, dropna=False, sort=False))
    return [rows for rows in groups if rows["pipeline"].nunique() == 2]


def saved(rows: pd.DataFrame, total: str) -> Saved:
    """Compare the second pipeline with the first on one machine, in pairs of repeats of the same number.

    Without such a pair, compare the medians of both.
    """
    first, second = rows["pipeline"].unique()
    before, after = (rows[rows["pipeline"] == name].set_index("repeat")[total] for name in (first, second))
    both = before.index.intersection(after.index)
    before, after = (side[both] if len(both) else pd.Series([side.median()]) for side in (before, after))
    ratio, apart = np.asarray(before) / np.asarray(after), np.asarray(before) - np.asarray(after)
    return Saved(total, summarise(ratio), summarise(apart))


def medians(rows: pd.DataFrame) -> pd.DataFrame:
    """Return median, min and max over the repeats of each column of times; index: pipeline, in order."""
    return rows.groupby("pipeline", sort=False)[[*PARTS.values(), OWN]].agg(["median", "min", "max"])


def sentence(found: Saved) -> str:
    """Write speed-up, milliseconds saved per batch and seconds saved per 1,000 batches, with ranges."""

    def ranged(values: Mapping[str, float], digits: int) -> str:
        middle = f"{values['median']:.{digits}f}"
        if values["n"] < 2:
            return middle
        return f"{middle} ({values['min']:.{digits}f} to {values['max']:.{digits}f})"

    return (
        f"{TOTALS[found.total]}: speed-up {ranged(found.speedup, 2)}, {ranged(found.ms, 2)} ms saved "
        f"per batch, {ranged(found.ms, 1)} s per 1,000 batches"
    )


def claim(found: Mapping[str, Saved]) -> str:
    """Write the verdict on the notebook's claims."""
    own, whole = found[OWN].answer, found[WHOLE].answer
    n = found[WHOLE].speedup["n"]
    few = " A verdict needs at least two repeats." if n < 2 else ""
    return (
        f"The notebook claims a speed-up of {FASTER_FROM:g}x to {FASTER_TO:g}x. By the whole total the claim "
        f"{whole}; by the notebook's own total it {own} (n = {n}).{few} {REST}"
    )


def compared(rows: pd.DataFrame) -> dict:
    """Return what page and terminal say of one machine: both means, the time saved, and the claims."""
    found = {total: saved(rows, total) for total in TOTALS}
    return {
        "machine": wording.machine(rows),
        "batches": int(rows["batches"].iloc[0]),
        "n": int(found[WHOLE].speedup["n"]),
        "columns": list(PARTS),
        "rows": [
            (pipeline, [f"{row[part, 'median']:.2f}" for part in PARTS.values()])
            for pipeline, row in medians(rows).iterrows()
        ],
        "saved": [sentence(one) for one in found.values()],
        "claim": claim(found),
    }


def lines(table: pd.DataFrame) -> list[str]:
    """Return the comparison for a terminal, one machine after another."""
    said = []
    for one in map(compared, machines(table)):
        names = [name for name, _ in one["rows"]]
        wide = max(map(len, names))
        said += ["", f"Mean milliseconds of {one['batches']} batches; {one['machine']}"]
        said.append(" " * wide + line("", one["columns"]))
        said += [f"{name:{wide}}" + line("", values) for name, values in one["rows"]]
        said.append(f'From "{names[0]}" to "{names[1]}", median (range) over n = {one["n"]}:')
        said += ["  " + text.replace(": ", ":\n    ", 1) for text in one["saved"]]
        said += [TOTAL_SAYS, one["claim"]]
    return said or [NOTHING]


def section(records: pd.DataFrame, steps: pd.DataFrame, pair: Mapping[str, str], name: str) -> list[dict]:
    """Return the content of the report's section, one dict per machine that has both pipelines."""
    found = []
    for number, rows in enumerate(machines(means(records, steps, pair)) if pair else []):
        pictures = [
            style.picture(draw([medians(rows)]), f"{name}-both-{number}-{kind}", caption)
            for kind, (draw, caption) in enumerate(zip(BOTH, CAPTIONS, strict=True))
        ]
        found.append({**compared(rows), "pictures": pictures})
    return found


LOOKS = [  # of the bars of the first pipeline and of the second
    {"color": colour, "hatch": hatch, "edgecolor": "white", "lw": 0, "zorder": 2}
    for colour, hatch in ((style.VERMILION, "//"), (style.BLUE, ""))
]
WHISKERS = {"ecolor": "black", "capsize": 3, "elinewidth": 1}  # of the bars: values go beyond them
NOTHING_DRAWN = "Nothing to draw: no machine has a finished repeat of both pipelines."


def phases(machines: Sequence[pd.DataFrame]) -> Figure:
    """Draw one panel per machine: Load, Transfer, Train and Total of both.

    machines: tables as medians returns them.
    """
    return style.panels(machines, _phases, lambda _: 3.6, NOTHING_DRAWN)


def totals(machines: Sequence[pd.DataFrame]) -> Figure:
    """Draw two horizontal bars per machine: the mean total of each pipeline."""
    return style.panels(machines, _totals, lambda _: 1.7, NOTHING_DRAWN)


BOTH = (phases, totals)


def _medians_and_reach(row: pd.Series, columns: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the medians of the columns, and how far their range reaches below and above."""
    middle, low, high = (np.array([row[c, end] for c in columns]) for end in ("median", "min", "max"))
    return middle, np.array([middle - low, high - middle])


def _phases(axis, middle: pd.DataFrame) -> None:
    wide, places = 0.38, np.arange(len(PARTS))
    for number, (name, row) in enumerate(middle.iterrows()):
        heights, reach = _medians_and_reach(row, list(PARTS.values()))
        at = places + (number - 0.5) * wide
        bars = axis.bar(at, heights, wide, label=name, yerr=reach, error_kw=WHISKERS, **LOOKS[number])
        axis.bar_label(bars, [f"{value:.2f}" for value in heights], padding=3, fontsize=8)
        for bar, part, value in zip(bars, PARTS, heights, strict=True):
            style.hint(bar, f"{name}, {part}: {value:.2f} ms")
    axis.set_xticks(places, PARTS)
    axis.set_ylabel("milliseconds a batch")
    axis.margins(y=0.15)
    axis.grid(axis="y", zorder=0)
    axis.legend(loc="upper left")


def _totals(axis, middle: pd.DataFrame) -> None:
    for number, (name, row) in enumerate(middle.iterrows()):
        (value,), reach = _medians_and_reach(row, ["total_ms"])
        (bar,) = axis.barh([number], [value], style.BAR, xerr=reach, error_kw=WHISKERS, **LOOKS[number])
        style.hint(bar, f"{name}: {value:.2f} ms")
    style.rows(axis, middle.index, [f"{value:.2f} ms" for value in middle["total_ms", "median"]])
    axis.set_xlabel("mean total, milliseconds a batch, the wait for data included")
    axis.grid(axis="x", zorder=0)
