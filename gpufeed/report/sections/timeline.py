"""The time line of one steady batch: the fastest and the slowest loader of a task, on one scale.

A record has how long the parts of a step took, and that training ended it. Where the device waited for the
batch, the copy came right before the training, and the host's wait for samples right before the copy: it may
have begun while the batch before was trained on. Where the device did not wait, the lengths of load and copy
are known and their places are not.
"""

import textwrap
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpufeed.report import style, tables, verdicts, wording
from gpufeed.report.load_records import timed

LANES = {
    "load_ms": ("load", style.ORANGE, "//"),
    "transfer_ms": ("transfer", style.SKY, ".."),
    "train_ms": ("compute", style.GREEN, ""),
}
PANEL_IN, HEAD_IN = 1.9, 0.55
NOTHING = "Nothing to draw: no task has two loaders with finished repeats and their steps."
CAPTION = (
    "One steady batch with the fastest and with the slowest loader, on one scale: the full batch whose "
    "length is nearest to the mean, after warm-up and not the first of an epoch. It begins where "
    "training on the batch before ended (grey). Load is the host's wait for samples, transfer the copy, "
    "compute what the device trains on the batch; where load reaches left of the line, it ran beside the "
    "training on the batch before. Filled bars lie where they were. Dashed ones were not waited for: "
    "records have their length and not their place, so that they begin at the line here. What worker "
    "processes and threads do ahead of a batch is not recorded and not drawn."
)


@dataclass(frozen=True)
class Step:
    """One step of a cell, in ms. before_ms: training on the batch before."""

    label: str
    title: str
    load_ms: float
    transfer_ms: float
    train_ms: float
    total_ms: float
    before_ms: float

    @property
    def waited(self) -> bool:
        """Whether the device waited for the batch: load and transfer came right before the training."""
        wait = self.total_ms - self.train_ms
        return wait >= max(verdicts.NEVER * self.total_ms, self.transfer_ms)

    @property
    def starts(self) -> dict[str, float]:
        """Where each part begins, in ms from the end of the batch before; 0 where that is not known."""
        train = max(0.0, self.total_ms - self.train_ms)
        if not self.waited:
            return {"load_ms": 0.0, "transfer_ms": 0.0, "train_ms": train}
        copy = train - self.transfer_ms
        return {"load_ms": copy - self.load_ms, "transfer_ms": copy, "train_ms": train}


def best_and_worst(cells: pd.DataFrame, records: pd.DataFrame, steps: pd.DataFrame) -> list[Step]:
    """Return the steps to draw, of the headline's task; none unless two of its loaders have step tables.

    cells, records: of one experiment. steps: as `read_steps` makes them. Of each loader its fastest
    cell counts.
    """
    groups = [rows for rows in tables.tasks(cells) if tables.pipelines(rows)["loader"].nunique() > 1]
    if not groups:
        return []
    ours = tables.ranked(tables.pipelines(groups[min(verdicts.headlines(groups))]))
    title, fastest = f"{wording.task(ours)}; {wording.machine(ours)}", ours.drop_duplicates("loader")
    found = [step for _, row in fastest.iterrows() if (step := _steady(row, title, records, steps))]
    return [found[0], found[-1]] if len(found) > 1 else []


def _steady(row: pd.Series, title: str, records: pd.DataFrame, steps: pd.DataFrame) -> Step | None:
    """Return the step of a cell nearest to the mean; the median says nothing if batches come in bursts."""
    own = timed(records)
    for name in tables.IDENTITY:
        own = own[own[name] == row[name]]
    counted = steps.merge(own[["path", "warmup_steps"]], on="path")
    first = counted.groupby(["path", "epoch"])["step"].transform("min")
    counted = counted[
        (counted["step"] >= counted["warmup_steps"])
        & (counted["step"] > first)
        & (counted["images"] == counted["images"].max())
    ]
    if counted.empty:
        return None
    nearest = counted.loc[(counted["total_ms"] - counted["total_ms"].mean()).abs().idxmin()]
    before = steps[(steps["path"] == nearest["path"]) & (steps["step"] == nearest["step"] - 1)]
    times = {name: float(nearest[name]) for name in (*LANES, "total_ms")}
    return Step(row["label"], title, **times, before_ms=float(before["train_ms"].iloc[0]))


def figure(cells: pd.DataFrame, records: pd.DataFrame, steps: pd.DataFrame) -> Figure:
    """Draw the time line, or a sentence if `best_and_worst` finds nothing to draw."""
    two = best_and_worst(cells, records, steps)
    return draw(two) if two else style.sentence_figure(NOTHING)


def draw(two: list[Step]) -> Figure:
    """Draw a panel a step."""
    left = min(min(-step.before_ms, *step.starts.values()) for step in two)
    right = max(start + getattr(step, name) for step in two for name, start in step.starts.items())
    with style.look():
        title = textwrap.wrap(two[0].title, style.TITLE_LETTERS + 5)
        figure, axes = style.stack([PANEL_IN] * len(two), more=HEAD_IN + 0.15 + 0.15 * len(title))
        figure.suptitle("\n".join(title), x=0.01, ha="left", fontsize=10)
        for axis, step in zip(axes, two, strict=True):
            _panel(axis, step)
            axis.set_xlim(left - 0.01 * (right - left), right + 0.01 * (right - left))
        axes[-1].set_xlabel("milliseconds since the end of training on the batch before")
    return figure


def _panel(axis: Axes, step: Step) -> None:
    axis.axvline(0, color="black", lw=1.2, zorder=1)
    axis.barh(
        len(LANES) - 1, -step.before_ms, height=style.BAR, zorder=2, facecolor="#C9CDD2", edgecolor="white"
    )
    for lane, (name, (part, colour, hatch)) in enumerate(LANES.items()):
        width, start = getattr(step, name), step.starts[name]
        if width > 0:
            look = {"facecolor": colour, "hatch": hatch, "edgecolor": "white", "lw": 0.6}
            if not step.waited and name != "train_ms":
                look = {"facecolor": "none", "edgecolor": "black", "ls": "--", "lw": 1.1}
            (bar,) = axis.barh(lane, width, left=start, height=style.BAR, zorder=2, **look)
            style.hint(bar, f"{step.label}, {part}: {wording.count(width)} ms")
    widths = [getattr(step, name) for name in LANES]
    said = [f"{wording.count(width)} ms" if width > 0 else "nothing" for width in widths]
    style.rows(axis, [name for name, *_ in LANES.values()], said)
    axis.set_title(f"{step.label}: {wording.count(step.total_ms)} ms from batch to batch")
    axis.grid(axis="x", zorder=0)
