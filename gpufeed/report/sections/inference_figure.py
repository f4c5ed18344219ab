"""The figure of models in use: a line of panels a model, throughput at the left and latency at the right."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from gpufeed.report import style
from gpufeed.report.sections.inference_rows import batches, done, machine, rate, title

ROW_IN, HEAD_IN = 0.34, 1.0
GROUP = 0.8  # of the distance of two rows is bars
EDGE = 1.5  # from the first point to the edge, for the number above it
HATCHES = ("", "//", "..", "\\\\")
NOTHING = "Nothing to draw: no backend of any model has been measured."
CAPTION = (
    "Images per second of batches, and milliseconds of single calls with one image on the host's clock until "
    "the device is done, by backend and precision; images lie on the device. Bars are medians over the "
    "rounds, whiskers reach from the slowest to the fastest; points are medians of the calls, whiskers reach "
    "to the slowest hundredth."
)


def draw(measurements: Sequence[Mapping]) -> Figure:
    """Panels of the measurements that have a row that is done."""
    drawn = [found for found in measurements if done(found)]
    if not drawn:
        return style.sentence_figure(NOTHING)
    heights = [HEAD_IN + ROW_IN * len(done(found)) for found in drawn]
    sizes = sorted({batch for found in drawn for batch in batches(found)})
    with style.look():
        figure = Figure(figsize=(style.WIDTH_IN, sum(heights) + 0.4), layout="constrained")
        axes = figure.subplots(
            len(drawn), 2, squeeze=False, gridspec_kw={"height_ratios": heights, "width_ratios": (3, 2)}
        )
        for (left, right), found in zip(axes, drawn, strict=True):
            _throughput(left, found, sizes)
            _latency(right, found)
            left.set_title(style.title(f"{title(found)}; {machine(found)}"))
        handles = [
            Patch(facecolor=_colour(number), hatch=_hatch(number), edgecolor="white", label=f"batch {batch}")
            for number, batch in enumerate(sizes)
        ]
        figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))
    return figure


def _colour(number: int) -> str:
    return style.LINE_COLOURS[number % len(style.LINE_COLOURS)]


def _hatch(number: int) -> str:
    return HATCHES[number % len(HATCHES)]


def _throughput(axis: Axes, found: Mapping, sizes: Sequence[int]) -> None:
    rows, wide = done(found), GROUP / len(sizes)
    for number, batch in enumerate(sizes):
        have = [(at, rate(row, batch)) for at, row in enumerate(rows.values()) if rate(row, batch)]
        if not have:
            continue
        y = np.array([at for at, _ in have]) + (number - (len(sizes) - 1) / 2) * wide
        middle, low, high = (np.array([found[end] for _, found in have]) for end in ("median", "min", "max"))
        axis.barh(
            y,
            middle,
            height=wide,
            color=_colour(number),
            hatch=_hatch(number),
            edgecolor="white",
            lw=0,
            zorder=2,
        )
        axis.errorbar(
            middle,
            y,
            xerr=[middle - low, high - middle],
            fmt="none",
            ecolor="black",
            capsize=2,
            lw=1,
            zorder=3,
        )
    _rows(axis, [f"{backend} {precision}" for backend, precision in rows])
    axis.set_xlim(left=0)
    axis.xaxis.set_major_locator(MaxNLocator(5))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: style.short(value)))
    axis.set_xlabel("images per second")


def _latency(axis: Axes, found: Mapping) -> None:
    rows = list(done(found).values())
    times = [row["latency"]["host_ms"] for row in rows]
    middle, high = (np.array([found[end] for found in times]) for end in ("median", "p99"))
    reach = [np.zeros(len(rows)), np.maximum(high - middle, 0)]
    axis.errorbar(
        middle, range(len(rows)), xerr=reach, fmt="o", color=style.VERMILION, ecolor="black", capsize=2, lw=1
    )
    for at, value in enumerate(middle):
        axis.annotate(
            f"{value:.3g}", (value, at), (0, 4), textcoords="offset points", ha="center", fontsize=7
        )
    axis.set_xscale("log")
    axis.set_xlim(middle.min() / EDGE, high.max() * EDGE)
    style.plain_ticks(axis.xaxis)
    axis.set_xlabel("milliseconds for one image")
    _rows(axis, [""] * len(rows))


def _rows(axis: Axes, names: Sequence[str]) -> None:
    """One line a row from the top down, with these names."""
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x", color="#E4E4E4", zorder=0)
