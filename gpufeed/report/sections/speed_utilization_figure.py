"""The figure of speed against AU: how fast each pipeline is, and how much of the device it keeps busy."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from gpufeed.benchmarks.ceilings.shares import END
from gpufeed.report import style, wording
from gpufeed.report.sections.ceilings_rows import groups

PANEL_IN, HEAD_IN, ROW_IN = 3.0, 0.9, 0.2
ROOM = 1.08  # of the scale, so that the fastest lies below the edge of its panel
TEN, RIM = 0.1, 0.01  # the scale of AU begins at a ten, and below the lowest by what keeps its marker whole
CAPTION = (
    "Images per second end to end against AU, with the 95 % intervals over the pairs; the scale of AU begins "
    "below the lowest, and the names have their AU, the highest first. The dashed line is "
    "an AU of 100 %: to its left the device is lost to the input. Of pipelines with the same AU the "
    "higher one has the cheaper work on the device, such as another augment. A task with one pipeline has no "
    "panel beside tasks with several."
)


def draw(measurements: Sequence[Mapping]) -> Figure:
    """A panel a task, of those with several pipelines if there are any; a sentence where nothing is done."""
    drawn = groups(measurements)
    drawn = {title: rows for title, rows in drawn.items() if len(rows) > 1} or drawn
    if not drawn:
        return style.sentence_figure("Nothing to draw: the ceilings of no cell have been measured.")
    heights = [HEAD_IN + max(PANEL_IN, ROW_IN * len(rows)) for rows in drawn.values()]
    with style.look():
        figure, axes = style.stack(heights)
        for axis, (title, rows) in zip(axes, drawn.items(), strict=True):
            _panel(axis, rows)
            axis.set_title(style.title(title))
    return figure


def _panel(axis: Axes, rows: Sequence[tuple[str, Mapping]]) -> None:
    for number, (name, found) in enumerate(rows):
        au, rate = found["shares"]["au"], found["images_per_s"][END]
        axis.errorbar(
            [au["median"]], [rate["median"]], xerr=_reach(au), yerr=_reach(rate), capsize=3, lw=1.2, ms=7,
            label=f"{name}: {wording.tenths(au['median'])}", **_point(number),
        )  # fmt: skip
    axis.axvline(1, color="black", lw=1, ls="--")
    axis.set_xlim(*_scale([found["shares"]["au"] for _, found in rows]))
    axis.set_ylim(0, ROOM * max(found["images_per_s"][END]["max"] for _, found in rows))
    axis.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axis.xaxis.set_major_locator(MaxNLocator(steps=(1, 2, 5, 10)))  # whole percents
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_xlabel("AU: compute-only over end-to-end time")
    axis.set_ylabel("images per second, end to end")
    axis.grid(color="#E4E4E4")
    axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=9)


def _scale(shares: Sequence[Mapping]) -> tuple[float, float]:
    """From the multiple of 10 % below the lowest AU or interval to a little beyond 100 % or the highest."""
    known = [value for au in shares for value in (au["median"], au["ci95_low"], au["ci95_high"]) if value]
    low = min(1 - TEN, max(0.0, TEN * math.floor((min(known) - RIM) / TEN)))
    high = max(1.0, *known)
    return low, high + (high - low) / 20


def _point(number: int) -> dict[str, str]:
    """The look of a point; full ones have a white rim, which keeps those that overlap apart."""
    point = style.point(number)
    return point if point["mfc"] == "white" else {**point, "mec": "white"}


def _reach(of: Mapping) -> list[list[float]] | None:
    """From the median to the ends of the interval; None without one."""
    if of["ci95_low"] is None:
        return None
    return [[max(0.0, of["median"] - of["ci95_low"])], [max(0.0, of["ci95_high"] - of["median"])]]
