"""Two pipelines side by side: the means of their phases, and what the second saves, by two kinds of total.

The notebook on pipelining compares means of totals that begin when the batch has arrived, so that the wait
for data, which is what workers save, is in none of them. Both totals stand here.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from markupsafe import Markup

from gpufeed.analysis import side_by_side_figures, style, tables, wording
from gpufeed.analysis.claims import FAILS, FASTER_FROM, FASTER_TO, HOLDS, OPEN
from gpufeed.analysis.files import write_whole
from gpufeed.analysis.statistics import overlap, summarise
from gpufeed.side_by_side import PARTS, TOTAL_SAYS, line, words

MACHINE = ["device", "hardware", "stack", "torch"]
OWN, WHOLE = "own_ms", "total_ms"
TOTALS = {
    OWN: "by the notebook's own total (transfer and train, without the wait for data)",
    WHOLE: "by the whole total (with the wait for data)",
}
COLUMNS = ["pipeline", "cell_id", "repeat", *MACHINE, "batches", *PARTS.values(), OWN]
CAPTIONS = (
    "Mean milliseconds a batch of each phase, and of the whole batch; medians over the repeats.",
    "Mean milliseconds a batch, the wait for data included; medians over the repeats, whiskers: their range.",
)
REST = (
    "Its other claims, that 4 to 8 workers are best and that the GPU never waits, need a sweep of workers: "
    "experiment pipelining has it."
)


@dataclass(frozen=True)
class Saved:
    """What the second pipeline saves by one kind of total; each from `summarise`, over pairs of repeats."""

    total: str
    speedup: Mapping[str, float]
    ms: Mapping[str, float]  # a batch, which is seconds per 1,000 batches too

    @property
    def answer(self) -> str:
        """Whether the notebook's claim, 1.5 to 3 times as fast, holds by this total."""
        low, high = self.speedup["min"], self.speedup["max"]
        if self.speedup["n"] < 2:
            return OPEN
        if low >= FASTER_FROM and high <= FASTER_TO:
            return HOLDS
        return OPEN if overlap(low, high, FASTER_FROM, FASTER_TO) else FAILS


def means(records: pd.DataFrame, steps: pd.DataFrame, pair: Mapping[str, str]) -> pd.DataFrame:
    """A row a repeat (COLUMNS): means over its batches, from the first one on.

    pair: block -> id of its cell. The first batch has the start of the workers in its wait.
    """
    of = {cell: words(block) for block, cell in pair.items()}
    rows = tables.waited_for(records, steps, ["cell_id", "repeat", *MACHINE])
    rows = rows[rows["cell_id"].isin(of)]
    groups = rows.groupby(["cell_id", "repeat", *MACHINE], dropna=False, sort=False)
    table = groups[list(PARTS.values())].mean()
    table["batches"] = groups.size()
    table = table.reset_index()
    table["pipeline"] = table["cell_id"].map(of)
    table[OWN] = table["transfer_ms"] + table["train_ms"]
    order = {name: place for place, name in enumerate(of.values())}
    return table.sort_values(["pipeline", "repeat"], key=lambda own: own.map(order).fillna(own))[COLUMNS]


def machines(table: pd.DataFrame) -> list[pd.DataFrame]:
    """The rows of each machine that has repeats of both pipelines."""
    groups = (rows for _, rows in table.groupby(MACHINE, dropna=False, sort=False))
    return [rows for rows in groups if rows["pipeline"].nunique() == 2]


def saved(rows: pd.DataFrame, total: str) -> Saved:
    """What the second pipeline saves over the first on one machine. Repeats of one number are a pair.

    Where none have the same number, each side's median stands for it.
    """
    first, second = rows["pipeline"].unique()
    before, after = (rows[rows["pipeline"] == name].set_index("repeat")[total] for name in (first, second))
    both = before.index.intersection(after.index)
    before, after = (side[both] if len(both) else pd.Series([side.median()]) for side in (before, after))
    ratio, apart = np.asarray(before) / np.asarray(after), np.asarray(before) - np.asarray(after)
    return Saved(total, summarise(ratio), summarise(apart))


def medians(rows: pd.DataFrame) -> pd.DataFrame:
    """Median over the repeats, with min and max, of each column of times: index pipeline, in their order."""
    times = [*PARTS.values(), OWN]
    return rows.groupby("pipeline", sort=False)[times].agg(["median", "min", "max"])


def sentence(found: Saved) -> str:
    """Speed-up, milliseconds saved a batch, and seconds per 1,000 batches, with ranges, in a sentence."""

    def told(values: Mapping[str, float], digits: int) -> str:
        middle = f"{values['median']:.{digits}f}"
        if values["n"] < 2:
            return middle
        return f"{middle} ({values['min']:.{digits}f} to {values['max']:.{digits}f})"

    return (
        f"{TOTALS[found.total]}: speed-up {told(found.speedup, 2)}, {told(found.ms, 2)} ms saved a batch, "
        f"{told(found.ms, 1)} s per 1,000 batches"
    )


def claim(found: Mapping[str, Saved]) -> str:
    """The sentence on the notebook's claims."""
    own, whole = found[OWN].answer, found[WHOLE].answer
    n = found[WHOLE].speedup["n"]
    few = " One repeat gives no range to judge it by." if n < 2 else ""
    return (
        f"The notebook's claim of {FASTER_FROM:g}x to {FASTER_TO:g}x {whole} with the wait for data "
        f"(n = {n}); by its own total it {own}.{few} {REST}"
    )


def lines(table: pd.DataFrame) -> list[str]:
    """The comparison for a terminal: of each machine the means of both, what is saved, and the claims."""
    said = []
    for rows in machines(table):
        said += ["", f"Means of {rows['batches'].iloc[0]} batches, milliseconds; {wording.machine(rows)}"]
        middle, wide = medians(rows), max(map(len, rows["pipeline"]))
        said.append(" " * wide + line("", PARTS))
        for name, row in middle.iterrows():
            said.append(f"{name:{wide}}" + line("", [float(row[part, "median"]) for part in PARTS.values()]))
        found = {total: saved(rows, total) for total in TOTALS}
        second, first = middle.index[1], middle.index[0]
        said += [f"{second} over {first}"]
        said += [f"  {sentence(one)}" for one in found.values()]
        said += [TOTAL_SAYS, claim(found)]
    return said or ["No comparison: no machine has a finished repeat of both pipelines."]


def publish(
    records: pd.DataFrame, steps: pd.DataFrame, pair: Mapping[str, str], out_table, out_phases, out_totals
) -> list[str]:
    """Writes the means as CSV and the two figures as SVG; returns the comparison, line by line."""
    table = means(records, steps, pair)
    write_whole(out_table, table.to_csv(index=False, lineterminator="\n"))
    for path, draw in zip((out_phases, out_totals), side_by_side_figures.BOTH, strict=True):
        write_whole(path, style.to_svg(draw([medians(rows) for rows in machines(table)])))
    return lines(table)


def section(records: pd.DataFrame, steps: pd.DataFrame, pair: Mapping[str, str], name: str) -> list[dict]:
    """What the page says, a machine each; [] where no machine has both pipelines."""
    found = []
    for number, rows in enumerate(machines(means(records, steps, pair)) if pair else []):
        by_total, middle = {total: saved(rows, total) for total in TOTALS}, medians(rows)
        pictures = []
        for kind, draw in enumerate(side_by_side_figures.BOTH):
            svg = style.inline_svg(
                style.to_svg(draw([middle])), f"{name}-both-{number}-{kind}", CAPTIONS[kind]
            )
            pictures.append({"svg": Markup(svg), "caption": CAPTIONS[kind]})
        found.append(
            {
                "machine": wording.machine(rows),
                "batches": int(rows["batches"].iloc[0]),
                "n": int(by_total[WHOLE].speedup["n"]),
                "columns": list(PARTS),
                "rows": [
                    (pipeline, [f"{row[part, 'median']:.2f}" for part in PARTS.values()])
                    for pipeline, row in middle.iterrows()
                ],
                "saved": [sentence(one) for one in by_total.values()],
                "claim": claim(by_total),
                "pictures": pictures,
            }
        )
    return found
