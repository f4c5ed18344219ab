"""The figure of the MLP's activation: a panel a work and form, groups of bars by width."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from gpufeed.core.plan_kernels import ACTIVATION_IMPLEMENTATIONS, ACTIVATION_WORKS, YARDSTICKS
from gpufeed.report import style
from gpufeed.report.sections.kernel_lines import WHO, Rows

PANEL_IN, LEGEND_IN, COLUMNS = 2.7, 0.7, 2
GROUP = 0.84  # of the distance of two groups is bars
LOOKS = {
    "extension": (style.BLUE, ""),
    "epilogue": (style.GREEN, "\\\\"),
    "compiled": (style.ORANGE, "//"),
    "eager": (style.SKY, ".."),
    "gelu_alone": (style.GREY, "xx"),
}
NOTHING = "Nothing to draw: no row of this benchmark has a time."
SHORT = {  # what fits above a panel
    "bias_gelu_forward": "bias and GELU, forward",
    "bias_gelu_backward": "bias and GELU, backward",
    "linear_gelu": "linear and GELU, forward",
    "mlp": "MLP block, forward and backward",
}


def draw(done: Rows, settings: Mapping) -> Figure:
    """Panels that have a time, two a row. done: as in `kernel_lines`."""
    wanted = [(work, form) for work, forms in ACTIVATION_WORKS.items() for form in forms]
    panels = [key for key in wanted if any(found[:2] == key for found in done)]
    if not panels:
        return style.sentence_figure(NOTHING)
    with style.look():
        lines = -(-len(panels) // COLUMNS)
        figure = Figure(figsize=(style.WIDTH_IN, LEGEND_IN + PANEL_IN * lines), layout="constrained")
        axes = figure.subplots(lines, COLUMNS, squeeze=False).ravel()
        for axis in axes[len(panels) :]:
            axis.set_visible(False)
        for axis, (work, form) in zip(axes, panels, strict=False):
            _panel(axis, done, work, form, settings["columns"])
        names = [name for name in ACTIVATION_IMPLEMENTATIONS if any(found[2] == name for found in done)]
        figure.legend(handles=[_handle(name) for name in names], loc="outside upper left", ncols=len(names))
    return figure


def _handle(name: str) -> Patch:
    colour, hatch = LOOKS[name]
    return Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=WHO[name])


def _panel(axis: Axes, done: Rows, work: str, form: str, columns: list[int]) -> None:
    names = [
        name for name in ACTIVATION_IMPLEMENTATIONS if any((work, form, name) == key[:3] for key in done)
    ]
    wide = GROUP / len(names)
    for number, name in enumerate(names):
        colour, hatch = LOOKS[name]
        found = [(at, done.get((work, form, name, width))) for at, width in enumerate(columns)]
        found = [(at, row) for at, row in found if row]
        x = np.array([at for at, _ in found]) + (number - (len(names) - 1) / 2) * wide
        middle, low, high = (
            np.array(values) for values in zip(*(_value(row) for _, row in found), strict=True)
        )
        axis.bar(x, middle, width=wide, color=colour, hatch=hatch, edgecolor="white", lw=0, zorder=2)
        reach = [middle - low, high - middle]
        axis.errorbar(x, middle, yerr=reach, fmt="none", ecolor="black", capsize=2, lw=1, zorder=3)
        for place, end, (_, row) in zip(x, high, found, strict=True):
            words = (
                f"{row['share_of_copy'] * 100:.0f}" if row["yardstick"] else f"{row['ms_median'] * 1000:.0f}"
            )
            axis.annotate(words, (place, end), (0, 2), textcoords="offset points", ha="center", fontsize=7)
    if work in YARDSTICKS:
        axis.axhline(1, color=style.VERMILION, lw=1.2, zorder=1)
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:.0f} %"))
        axis.set_ylabel(f"of the speed of a {YARDSTICKS[work]}")
    else:
        axis.set_ylabel("TFLOP/s; microseconds on the bars")
    axis.set_ylim(0, axis.get_ylim()[1] * 1.08)
    axis.set_title(f"{SHORT[work]}, {form}")
    axis.set_xticks(range(len(columns)), [f"{width} columns" for width in columns])
    axis.tick_params(axis="x", length=0)
    axis.grid(axis="y", color="#E4E4E4", zorder=0)


def _value(row: Mapping) -> tuple[float, float, float]:
    """(median, low, high) of what a panel shows of a row: its share, or else its TFLOP/s."""
    if row["yardstick"] is None:
        return tuple(row["flops"] / row[f"ms_{end}"] / 1e9 for end in ("median", "q3", "q1"))
    return tuple(row["copy_ms"] / row[f"ms_{end}"] for end in ("median", "q3", "q1"))
