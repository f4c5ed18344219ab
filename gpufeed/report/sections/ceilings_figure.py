"""The figure of ceilings: where a steady epoch of each cell goes, a panel a task, a bar a pipeline."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gpufeed.report import style, wording
from gpufeed.report.sections import ceilings_verdict
from gpufeed.report.sections.ceilings_rows import groups, parts

ROW_IN, HEAD_IN = 0.38, 1.0
FEWEST_ROWS = 2  # that a panel has room for, so that a bar alone is no block
VISIBLE = 0.002  # share of the longest bar: what is thinner is not in the legend
ROOM = 1.45  # of the longest bar: what stands beside the bars is in it
# Hatches tell them apart in a grey print, and the light ones stand beside dark ones.
LOOKS = {
    "compute": (style.BLUE, "", "compute: what remains without any input"),
    "first batch": (style.GREY, "xx", "wait for the first batch of the epoch"),
    "decode": (style.VERMILION, "//", "wait, decode"),
    "transfer": (style.ORANGE, "..", "wait, transfer"),
    "other wait": (style.SKY, "\\\\", "wait, not told apart"),
    "growth": (style.GREEN, "++", "steps slower beside the loader"),
}
NOTHING = "Nothing to draw: the ceilings of no cell have been measured."
CAPTION = (
    "Where a steady epoch of each pipeline goes, end to end. Compute is what remains where one batch on the "
    "device is trained on again and again; the rest is what the input costs: the wait, by what difference "
    "runs of the loader say of it, and what the steps themselves take longer beside the loader. What falls "
    "on the first batch of an epoch, decode too, stands there and not with its stage. Beside each bar its "
    "AU, the share of compute, and its verdict."
)


def draw(measurements: Sequence[Mapping]) -> Figure:
    """Panels of the measurements that are done."""
    drawn = groups(measurements)
    if not drawn:
        return style.sentence_figure(NOTHING)
    heights = [HEAD_IN + ROW_IN * len(rows) for rows in drawn.values()]
    with style.look():
        figure, axes = style.stack(heights, more=0.7)
        seen = set()
        for axis, (name, rows) in zip(axes, drawn.items(), strict=True):
            seen |= _panel(axis, rows)
            axis.set_title(style.title(name))
        figure.legend(handles=_legend(seen), loc="outside upper left", ncols=3)
    return figure


def _panel(axis: Axes, rows: Sequence[tuple[str, Mapping]]) -> set[str]:
    """Draws the bars and returns the parts that they have."""
    split = [parts(found) for _, found in rows]
    longest, seen = max(sum(part.values()) for part in split), set()
    for y, (found, seconds) in enumerate(zip((found for _, found in rows), split, strict=True)):
        left = 0.0
        for name, (colour, hatch, _) in LOOKS.items():
            if seconds[name] > 0:
                bar = {"color": colour, "hatch": hatch, "edgecolor": "white", "lw": 0.6, "zorder": 2}
                axis.barh(y, seconds[name], left=left, height=0.66, **bar)
                left += seconds[name]
            if seconds[name] > VISIBLE * longest:
                seen.add(name)
        share = found["shares"]["au"]["median"]
        words = f"AU {wording.tenths(share)}, {ceilings_verdict.of(found).kind}"
        axis.text(left + 0.01 * longest, y, words, va="center", fontsize=9)
    axis.set_yticks(range(len(rows)), [name for name, _ in rows])
    spare = max(0, FEWEST_ROWS - len(rows)) / 2
    axis.set_ylim(len(rows) - 0.5 + spare, -0.5 - spare)
    axis.set_xlim(0, longest * ROOM)
    axis.tick_params(axis="y", length=0)
    axis.set_xlabel("seconds of an epoch, mean over the pairs")
    axis.grid(axis="x", color="#E4E4E4", zorder=0)
    return seen


def _legend(seen: set[str]) -> list[Patch]:
    return [
        Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=label)
        for name, (colour, hatch, label) in LOOKS.items()
        if name in seen
    ]
