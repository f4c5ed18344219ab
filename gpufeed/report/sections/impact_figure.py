"""The figure of the impact table: the factor of each change, with its range."""

from math import ceil, floor
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from gpufeed.report import style, wording
from gpufeed.report.significance import ABOVE, BELOW
from gpufeed.system.statistics import FASTER, SLOWER

ROW_IN, LINE_IN, REST_IN = 0.36, 0.18, 1.3
LABEL = 44  # characters a line of a change's name
AHEAD, BEHIND = (style.BLUE, "o"), (style.VERMILION, "s")
LOOKS = {FASTER: AHEAD, ABOVE: AHEAD, SLOWER: BEHIND, BELOW: BEHIND}  # anything else is grey
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
STEPS, MOST_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2), 7


def factors(machines: list[dict]) -> Figure:
    """One panel a machine, one row a change; machines: of `impact.section`, each with a row at least."""
    with style.look():
        heights = [REST_IN + row_in(machine["rows"]) * len(machine["rows"]) for machine in machines]
        figure = Figure(figsize=(style.WIDTH_IN, sum(heights)), layout="constrained")
        axes = figure.subplots(len(machines), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axis, machine in zip(axes, machines, strict=True):
            _panel(axis, machine)
    return figure


def row_in(rows: list[dict]) -> float:
    """Inches of a row, so that the longest name of a change does not reach into the next."""
    return max(ROW_IN, LINE_IN * max(len(name(row).splitlines()) for row in rows))


def name(row: dict) -> str:
    """A change's name in lines."""
    return fill(row["change"], LABEL)


def ticks(low: float, high: float) -> list[float]:
    """Factors from low to high: of TICKS, or where one would be alone, by the finest of STEPS that is few."""
    found = [tick for tick in TICKS if low <= tick <= high]
    if len(found) > 1:
        return found
    step = next((step for step in STEPS if (high - low) / step <= MOST_TICKS), STEPS[-1])
    return [round(step * n, 2) for n in range(ceil(low / step), floor(high / step) + 1)]


def _panel(axis: Axes, machine: dict) -> None:
    rows = machine["rows"]
    axis.axvline(1, color="black", lw=1)
    for y, row in enumerate(rows):
        colour, marker = LOOKS.get(row["verdict"], (style.GREY, "D"))
        reach = [[row["factor"] - row["low"]], [row["high"] - row["factor"]]]
        axis.errorbar([row["factor"]], [y], xerr=reach, color=colour, marker=marker, ms=6, capsize=3, lw=1.4)
        words = f"{wording.ratio(row['factor'])} {row['verdict']}"
        axis.annotate(
            words, (1, y), (6, 0), ("axes fraction", "data"), "offset points", fontsize=8, va="center"
        )
    low, high = min(row["low"] for row in rows), max(row["high"] for row in rows)
    axis.set_xscale("log")
    axis.set_xlim(min(low, 0.9) / 1.1, max(high, 1.1) * 1.1)
    axis.set_xticks(ticks(*axis.get_xlim()))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axis.set_yticks(np.arange(len(rows)), [name(row) for row in rows])
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.tick_params(axis="y", length=0)
    # from the right end, since the names of the changes leave little room to the right of the left one
    axis.set_xlabel(
        "images per second after the change over before; bars: 95 % interval, or range", loc="right"
    )
    axis.set_title(machine["title"], loc="right")
    axis.grid(axis="x", color="#DDDDDD")
