"""Whether pipelines, and forms of the activation, learn the same: final losses, and the figure by epoch."""

import itertools
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gpufeed.report import style, tables, wording
from gpufeed.report.figures import fastest_settings, panel_title
from gpufeed.report.load_records import HELD_OUT

# Cells that train the same way up to the same last step.
SAME_LENGTH = ["epochs", "step_limit"]
ACTIVATION = "model.activation="  # the override
# The same task, whatever the activation of the model; `rest` is added by `tasks`.
SAME_TASK = [column if column != "overrides" else "rest" for column in tables.SAME_TASK]
# What else than its activation tells a cell from others of its task.
SAME_PIPELINE = [
    "loader", "workers", "prefetch_factor", "pin_memory", "persistent_workers", "augment", "channels_last",
    "cuda_graphs", "compile",
]  # fmt: skip


def tasks(cells: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Yield all cells with a finished repeat as `tables.tasks` does, but activations share a task.

    activation: its name, empty for a model that has none. rest: the overrides without it. variant, which
    names the task, is without it too where a task has several.
    """
    for rows in tables.tasks(cells, _trained, SAME_TASK):
        several = rows["activation"].nunique() > 1
        yield rows.assign(variant=rows["variant"].map(without_activation)) if several else rows


def _trained(cells: pd.DataFrame) -> pd.DataFrame:
    trained = tables.trained(cells)
    names = [json.loads(hyper).get("model", {}).get("activation", "") for hyper in trained["hyper"]]
    return trained.assign(activation=names, rest=list(map(without_activation, trained["overrides"])))


def without_activation(overrides: str) -> str:
    """Remove the override of the activation from `a; b`."""
    return "; ".join(text for text in overrides.split("; ") if text and not text.startswith(ACTIVATION))


def difference(cells: pd.DataFrame, epochs: pd.DataFrame) -> str:
    """Return what the final training losses say, in sentences. epochs: as `read_epochs` makes it.

    Repeats of the same number have the same seed, so their difference is not that of other seeds.
    """
    return f"{between_pipelines(cells, epochs)} {between_activations(cells, epochs)}".rstrip()


def between_pipelines(cells: pd.DataFrame, epochs: pd.DataFrame) -> str:
    """Return the largest difference between pipelines of one task, repeat by repeat."""
    groups = list(_comparable(cells, final_losses(epochs)))
    if not groups:
        return "No two pipelines trained equally long in the same repeat, so their losses are not compared."
    furthest = max(groups, key=lambda rows: _widest(rows, "repeat"))
    sentence = (
        "The largest difference of the final loss between pipelines of one task, in repeats with the same "
        f"seed, is {_widest(furthest, 'repeat'):.2g}"
    )
    if furthest["repeat"].nunique() < 2:
        return f"{sentence}."
    apart = _widest(furthest, "cell_id")
    return f"{sentence}; there, repeats of one pipeline, whose seeds differ, lie up to {apart:.2g} apart."


def between_activations(cells: pd.DataFrame, epochs: pd.DataFrame) -> str:
    """Return which two activations differ by more than two seeds do; empty without such a pair."""
    worst: dict[tuple[str, str], tuple[float, float]] = {}
    for pair, apart, seeds in _pairs(cells, final_losses(epochs)):
        if pair not in worst or apart - seeds > worst[pair][0] - worst[pair][1]:
            worst[pair] = apart, seeds
    if not worst:
        return ""
    parts = [f"{a} and {b} {apart:.2g} ({seeds:.2g})" for (a, b), (apart, seeds) in worst.items()]
    sentence = (
        "How far the final losses of two activations lie apart in one pipeline with one seed, and in "
        f"brackets how far those of one activation with two seeds do: {wording.listing(parts)}."
    )
    beyond = [f"{a} and {b}" for (a, b), (apart, seeds) in worst.items() if apart > seeds]
    if not beyond:
        return f"{sentence} No two differ by more than two seeds do."
    return f"{sentence} {'; '.join(beyond)}: they differ by more than two seeds do."


def _pairs(cells: pd.DataFrame, final: pd.DataFrame) -> Iterator[tuple[tuple[str, str], float, float]]:
    """Yield (two activations, how far apart they are, how far two seeds are) of each pipeline with both."""
    for rows in tasks(cells):
        for _, same in tables.pipelines(rows).groupby([*SAME_PIPELINE, *SAME_LENGTH], dropna=False):
            losses = final.merge(same[[*tables.IDENTITY, "activation"]], on=tables.IDENTITY)
            for pair in itertools.combinations(sorted(set(losses["activation"])), 2):
                ours = losses[losses["activation"].isin(pair)]
                both = ours[ours.groupby("repeat")["activation"].transform("nunique") == 2]
                if both["repeat"].nunique() > 1:
                    yield pair, _widest(both, "repeat"), _widest(ours, "activation")


def _widest(rows: pd.DataFrame, key: str) -> float:
    """Return the widest range of the loss among rows of the same `key`."""
    losses = rows.groupby(key)["train_loss"]
    return float((losses.max() - losses.min()).max())


def final_losses(epochs: pd.DataFrame) -> pd.DataFrame:
    """Return the last epoch of every repeat that has more than one."""
    many = epochs[epochs.groupby("path")["epoch"].transform("nunique") > 1]
    return many.sort_values("epoch").drop_duplicates("path", keep="last").dropna(subset=["train_loss"])


def _comparable(cells: pd.DataFrame, final: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Yield the final losses of each task and length in which two pipelines share a repeat."""
    for rows in tables.tasks(cells, tables.trained):
        for _, ours in tables.pipelines(rows).groupby(SAME_LENGTH, dropna=False):
            losses = final.merge(ours[tables.IDENTITY], on=tables.IDENTITY)
            losses = losses[losses.groupby("repeat")["cell_id"].transform("nunique") > 1]
            if len(losses):
                yield losses


CURVES_IN, REST_IN = 2.6, 0.8
SHEET_IN = 10.0  # what fits on A4 and US Letter with its caption, at the width of the paper
MEASURES = {
    "train_loss": "training loss",
    "held_out_loss": "loss on held-out images",
    "top1": "top-1 on held-out images",
}
MARKS = 9  # markers a curve, about: more would hide its dashes, and the curves below it


def draw(cells: pd.DataFrame, epochs: pd.DataFrame) -> list[Figure]:
    """Draw training loss against epochs, and each pipeline's final loss, for cells of several epochs.

    epochs: as `read_epochs` makes it. Two panels a task, activations of the model together;
    below them the loss and accuracy on held-out images, where they were asked for in two epochs. Curves that
    agree lie on each other, so the final losses stand in rows below them, where the names,
    which are the legend, give the accuracy. As many figures as sheets of paper they take; none without cells.
    """
    tasks = learners(cells, epochs)
    sheets = _sheets(tasks[: style.MOST_PANELS], epochs)
    drawn = [
        style.panels(panels, lambda axis, panel: panel.draw(axis), lambda one: one.inches)
        for panels in sheets
    ]
    if drawn:
        style.count_left_out(drawn[-1], len(tasks[style.MOST_PANELS :]))
    return drawn


class Panel(NamedTuple):
    """A panel: its height, and the function that draws it."""

    inches: float
    draw: Callable[[Axes], None]


def _panels(rows: pd.DataFrame, epochs: pd.DataFrame) -> list[Panel]:
    """Return the panels of a task; HELD_OUT only if some cell was evaluated after two epochs or more."""
    curves = partial(_curves, rows=rows, epochs=epochs)
    again = any(_of(row, epochs, "top1")["epoch"].nunique() > 1 for _, row in rows.iterrows())
    return [
        Panel(CURVES_IN, partial(curves, measure="train_loss")),
        Panel(REST_IN + style.rows_in(names(rows)), partial(_final, rows=rows, epochs=epochs)),
        *(Panel(CURVES_IN, partial(curves, measure=measure)) for measure in HELD_OUT if again),
    ]


def _sheets(tasks: list[pd.DataFrame], epochs: pd.DataFrame) -> list[list[Panel]]:
    """Return the panels of each figure; a task stays in one piece."""
    sheets: list[list[Panel]] = []
    for panels in (_panels(rows, epochs) for rows in tasks):
        if not sheets or sum(one.inches for one in [*sheets[-1], *panels]) > SHEET_IN:
            sheets.append([])
        sheets[-1] += panels
    return sheets


def learners(cells: pd.DataFrame, epochs: pd.DataFrame) -> list[pd.DataFrame]:
    """Return each task's pipelines that train for several epochs, with `label`, `look` and `left_out`."""
    counted = epochs.groupby("cell_id")["epoch"].nunique()
    panels = []
    for rows in tasks(cells):
        ours = tables.pipelines(rows)
        ours = ours[ours["cell_id"].map(counted).fillna(0) > 1]
        if len(ours):
            panels.append(_with_names(fastest_settings(ours, "activation")))
    return panels


def _with_names(rows: pd.DataFrame) -> pd.DataFrame:
    """Add names and looks of the curves; an activation has one colour, its pipelines differ in markers."""
    activations = rows["activation"].nunique()
    if activations < 2:
        return rows.assign(label=wording.labels(rows), look=range(len(rows)))
    parts = []
    for number, (activation, ours) in enumerate(rows.groupby("activation", sort=True)):
        names = [f"{activation or 'no activation'}, {name}" for name in wording.labels(ours)]
        turn = len(style.LINE_COLOURS)
        parts.append(ours.assign(label=names, look=[number + turn * at for at in range(len(ours))]))
    return pd.concat(parts)


def _of(row: pd.Series, epochs: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Return the epochs of a cell's repeats on its machine that have the measure."""
    same = [epochs[key] == row[key] for key in tables.IDENTITY]
    return epochs[np.logical_and.reduce([*same, epochs[measure].notna()])]


def _curves(axis: Axes, rows: pd.DataFrame, epochs: pd.DataFrame, measure: str) -> None:
    """Draw the median of each epoch, with the range of the repeats as a band."""
    for place, (_, row) in enumerate(rows.iterrows()):
        values = _of(row, epochs, measure).groupby("epoch")[measure].agg(["median", "min", "max"])
        look, every = style.line(row["look"]), max(1, len(values) // MARKS)
        # each curve's markers begin elsewhere, so that they do not cover each other where the curves agree
        marks = (place * every // len(rows), every)
        x = values.index + 1
        axis.plot(x, values["median"], ms=4, lw=1.2, markevery=marks, **look)
        axis.fill_between(x, values["min"], values["max"], color=look["color"], alpha=0.12, lw=0)
    axis.set(xlabel="epoch", ylabel=MEASURES[measure])
    if measure == "train_loss":  # the first panel of its task
        axis.set_title(panel_title(rows))
    if measure == "top1":
        axis.yaxis.set_major_formatter(lambda value, _: wording.percent(value))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.grid(True)


def _final(axis: Axes, rows: pd.DataFrame, epochs: pd.DataFrame) -> None:
    """Draw one point with its range in the row of its pipeline."""
    for place, (_, row) in enumerate(rows.iterrows()):
        values = _of(row, epochs, "train_loss")
        losses = values.loc[values["epoch"] == values["epoch"].max(), "train_loss"]
        middle = losses.median()
        reach = [[middle - losses.min()], [losses.max() - middle]]
        look = style.line(row["look"])
        axis.errorbar([middle], [place], xerr=reach, ms=6, capsize=3, lw=1.4, **look)
        style.hint_points(axis, [middle], [place], [f"{_with_accuracy(row)}, final loss {middle:.3g}"])
    axis.set_xlabel("training loss of the last epoch")
    axis.xaxis.set_major_locator(MaxNLocator(4))
    style.rows(axis, names(rows))
    axis.grid(True)


def names(rows: pd.DataFrame) -> list[str]:
    """Return the pipelines, with their accuracy where it is known."""
    return [_with_accuracy(row) for _, row in rows.iterrows()]


def _with_accuracy(row: pd.Series) -> str:
    return row["label"] if pd.isna(row["top1"]) else f"{row['label']}: top-1 {wording.percent(row['top1'])}"
