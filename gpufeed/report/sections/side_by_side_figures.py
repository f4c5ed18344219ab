"""Draw two pipelines side by side: their phases as grouped bars, and their totals."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from gpufeed.core.plan_side_by_side import PARTS
from gpufeed.report import style

COLOURS, HATCHES = (style.VERMILION, style.BLUE), ("//", "")
WHISKERS = {
    "ecolor": "black",
    "capsize": 3,
    "elinewidth": 1,
}  # of the bars: values go beyond them
NOTHING = "Nothing to draw: no machine has a finished repeat of both pipelines."


def phases(machines: Sequence[pd.DataFrame]) -> Figure:
    """Draw one panel per machine: Load, Transfer, Train and Total of both.

    machines: tables as side_by_side.medians returns them.
    """
    return _panels(machines, 3.6, _phases)


def totals(machines: Sequence[pd.DataFrame]) -> Figure:
    """Draw two horizontal bars per machine: the mean total of each pipeline."""
    return _panels(machines, 1.7, _totals)


BOTH = (phases, totals)


def _panels(machines: Sequence[pd.DataFrame], height: float, draw) -> Figure:
    if not machines:
        return style.sentence_figure(NOTHING)
    with style.look():
        figure = Figure(figsize=(style.WIDTH_IN, height * len(machines)), layout="constrained")
        axes = figure.subplots(len(machines), 1, squeeze=False)[:, 0]
        for axis, middle in zip(axes, machines, strict=True):
            draw(axis, middle)
    return figure


def _ends(row: pd.Series, columns: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the medians of the columns, and how far their range reaches below and above."""
    middle, low, high = (np.array([row[c, end] for c in columns]) for end in ("median", "min", "max"))
    return middle, np.array([middle - low, high - middle])


def _phases(axis, middle: pd.DataFrame) -> None:
    wide, places = 0.38, np.arange(len(PARTS))
    for number, (name, row) in enumerate(middle.iterrows()):
        heights, reach = _ends(row, list(PARTS.values()))
        look = {"color": COLOURS[number], "hatch": HATCHES[number], "edgecolor": "white", "lw": 0}
        at = places + (number - 0.5) * wide
        bars = axis.bar(at, heights, wide, label=name, zorder=2, yerr=reach, error_kw=WHISKERS, **look)
        axis.bar_label(bars, [f"{value:.2f}" for value in heights], padding=3, fontsize=8)
    axis.set_xticks(places, PARTS)
    axis.set_ylabel("milliseconds a batch")
    axis.margins(y=0.15)
    axis.grid(axis="y", color="#E4E4E4", zorder=0)
    axis.legend(loc="upper left")


def _totals(axis, middle: pd.DataFrame) -> None:
    for number, (_, row) in enumerate(middle.iterrows()):
        (value,), reach = _ends(row, ["total_ms"])
        look = {"color": COLOURS[number], "hatch": HATCHES[number], "edgecolor": "white", "lw": 0}
        bar = axis.barh([number], [value], 0.6, zorder=2, xerr=reach, error_kw=WHISKERS, **look)
        axis.bar_label(bar, [f"{value:.2f} ms"], padding=6, fontsize=9)
    axis.set_yticks(range(len(middle)), middle.index)
    axis.invert_yaxis()
    axis.margins(x=0.15)
    axis.set_xlabel("mean total, milliseconds a batch, the wait for data included")
    axis.grid(axis="x", color="#E4E4E4", zorder=0)
