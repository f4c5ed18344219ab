"""The figure of learning: loss and accuracy by epoch, and the final losses below each other."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from gpufeed.analysis import learning, style, tables, wording
from gpufeed.analysis.figures import MOST_BARS, panel_title

LEAST_IN, ROW_IN, REST_IN, HELD_OUT_IN = 3.2, 0.24, 1.3, 2.7
NOTHING = "Nothing to draw: no finished cell of this experiment trains for two epochs."


def draw(cells: pd.DataFrame, epochs: pd.DataFrame) -> Figure:
    """Training loss against epochs, and the final loss of each pipeline, for cells of more than one epoch.

    epochs: as `records.read_epochs` makes it. A row of panels a task, activations of the model together;
    below it the loss and accuracy on held-out images, where they were asked for in two epochs. Curves that
    agree lie on each other, so the final losses stand below each other on the right, where the names,
    which are the legend, give the accuracy.
    """
    panels = learners(cells, epochs)
    if not panels:
        return style.sentence_figure(NOTHING)
    lines: list[tuple[float, pd.DataFrame, bool]] = []  # (height, rows of the task, held out)
    for rows in panels:
        lines.append((max(LEAST_IN, REST_IN + ROW_IN * len(rows)), rows, False))
        if asked_again(rows, epochs):
            lines.append((HELD_OUT_IN, rows, True))
    with style.look():
        heights = [height for height, *_ in lines]
        figure = Figure(figsize=(style.WIDTH_IN, sum(heights)), layout="constrained")
        # a part for each line of panels: names beside one of them leave the others their width
        parts = figure.subfigures(len(lines), 1, squeeze=False, height_ratios=heights)[:, 0]
        for part, (_, rows, held_out) in zip(parts, lines, strict=True):
            left, right = part.subplots(1, 2)
            if held_out:
                _curves(left, rows, epochs, "held_out_loss", "loss on held-out images")
                _curves(right, rows, epochs, "top1", "top-1 on held-out images")
                right.yaxis.set_major_formatter(FuncFormatter(lambda value, _: wording.percent(value)))
            else:
                _curves(left, rows, epochs, "train_loss", "training loss")
                left.set_title(panel_title(rows))
                _final(right, rows, epochs)
    return figure


def has(cells: pd.DataFrame, epochs: pd.DataFrame) -> bool:
    """Whether `draw` has something to draw."""
    return bool(learners(cells, epochs))


def learners(cells: pd.DataFrame, epochs: pd.DataFrame) -> list[pd.DataFrame]:
    """The pipelines of each task that train for several epochs, with `label`, `look` and `left_out`."""
    counted = epochs.groupby("cell_id")["epoch"].nunique()
    panels = []
    for rows in learning.tasks(cells):
        ours = tables.pipelines(rows)
        ours = ours[ours["cell_id"].map(counted).fillna(0) > 1]
        if len(ours):
            panels.append(_named(_shorten(ours.sort_values("images_per_s", ascending=False))))
    return panels


def _shorten(rows: pd.DataFrame) -> pd.DataFrame:
    """With too many for one panel, the fastest of each loader, worker count, augment and activation."""
    kept = rows
    if len(rows) > MOST_BARS:
        kept = rows.drop_duplicates(["loader", "workers", "augment", "activation"])
    return kept.assign(left_out=len(rows) - len(kept))


def _named(rows: pd.DataFrame) -> pd.DataFrame:
    """With the names and looks of the curves; an activation has one colour, its pipelines markers."""
    activations = rows["activation"].nunique()
    if activations < 2:
        return rows.assign(label=wording.labels(rows), look=range(len(rows)))
    parts = []
    for number, (activation, ours) in enumerate(rows.groupby("activation", sort=True)):
        names = [f"{activation or 'no activation'}, {name}" for name in wording.labels(ours)]
        turn = len(style.LINE_COLOURS)
        parts.append(ours.assign(label=names, look=[number + turn * at for at in range(len(ours))]))
    return pd.concat(parts)


def asked_again(rows: pd.DataFrame, epochs: pd.DataFrame) -> bool:
    """Whether held-out images were asked about in two epochs of some cell."""
    return any(_of(row, epochs, "top1")["epoch"].nunique() > 1 for _, row in rows.iterrows())


def _of(row: pd.Series, epochs: pd.DataFrame, measure: str) -> pd.DataFrame:
    """The epochs of a cell's repeats on its machine that have the measure."""
    same = [epochs[key] == row[key] for key in tables.IDENTITY]
    return epochs[np.logical_and.reduce([*same, epochs[measure].notna()])]


def _curves(axis: Axes, rows: pd.DataFrame, epochs: pd.DataFrame, measure: str, name: str) -> None:
    """The median of each epoch with the range of the repeats as a band."""
    for _, row in rows.iterrows():
        values = _of(row, epochs, measure).groupby("epoch")[measure].agg(["median", "min", "max"])
        look = style.line(row["look"])
        axis.plot(values.index + 1, values["median"], ms=4, lw=1.2, **look)
        axis.fill_between(
            values.index + 1, values["min"], values["max"], color=look["color"], alpha=0.12, lw=0
        )
    axis.set(xlabel="epoch", ylabel=name)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.grid(color="#E4E4E4")


def _final(axis: Axes, rows: pd.DataFrame, epochs: pd.DataFrame) -> None:
    """One point with its range in the row of its pipeline."""
    for place, (_, row) in enumerate(rows.iterrows()):
        values = _of(row, epochs, "train_loss")
        losses = values.loc[values["epoch"] == values["epoch"].max(), "train_loss"]
        middle = losses.median()
        reach = [[middle - losses.min()], [losses.max() - middle]]
        look = style.line(row["look"])
        axis.errorbar([middle], [place], xerr=reach, ms=6, capsize=3, lw=1.4, **look)
    axis.set_xlabel("training loss of the last epoch")
    axis.xaxis.set_major_locator(MaxNLocator(4))
    axis.set_yticks(range(len(rows)), [_with_accuracy(row) for _, row in rows.iterrows()], fontsize=8)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.grid(color="#E4E4E4")


def _with_accuracy(row: pd.Series) -> str:
    return row["label"] if pd.isna(row["top1"]) else f"{row['label']}: top-1 {wording.percent(row['top1'])}"
