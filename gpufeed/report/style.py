"""One look for all figures: SVG with real text, colours that survive colour blindness and a grey print."""

import io
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import matplotlib as mpl
import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

TEMPLATES = Path(__file__).parent / "templates"
# Okabe and Ito, "Color Universal Design" (2008): distinct under the common colour blindnesses.
BLUE, ORANGE, SKY, GREEN, VERMILION, GREY = "#0072B2", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#6B6B6B"
LINE_COLOURS = (BLUE, VERMILION, GREEN, ORANGE, SKY, GREY)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":")
WIDTH_IN = 9.0
TITLE_LETTERS = 72  # that fit beside each other above axes of a figure of that width
# Whiskers of bars that have no look of their own.
RANGE = {"fmt": "none", "ecolor": "black", "capsize": 2, "lw": 1, "zorder": 3}
ABOVE = {"textcoords": "offset points", "ha": "center", "fontsize": 7}  # of a number above a mark

SETTINGS = {
    "svg.fonttype": "none",  # text stays text: it can be searched, copied and read aloud
    "svg.hashsalt": "gpufeed",  # the same data gives the same bytes
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.8,
    "legend.frameon": False,
}


def templates() -> jinja2.Environment:
    """The templates of pages: what they are given is escaped, and a name that nobody gave is an error."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def part(name: str) -> Markup:
    """A style sheet or a script of TEMPLATES, to stand in a page as it is."""
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))


def look():
    """The context in which a figure is both made and saved."""
    return mpl.rc_context(SETTINGS)


def line(number: int) -> dict[str, str]:
    """Colour, marker and dashes of the line of that number.

    The three repeat after 6, 7 and 4: marker and dashes alone tell 28 lines apart, without any colour.
    """
    return {
        "color": LINE_COLOURS[number % len(LINE_COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "ls": LINES[number % len(LINES)],
    }


def point(number: int) -> dict[str, str]:
    """Colour, marker and face of the point of that number; 14 differ without colour, 7 of them hollow."""
    look = line(number)
    hollow = number // len(MARKERS) % 2
    return {
        "color": look["color"],
        "marker": look["marker"],
        "mfc": "white" if hollow else look["color"],
        "ls": "none",
    }


def plain_ticks(axis: Axis) -> None:
    """Ticks of a logarithmic axis at 1, 2 and 5, in short numbers."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def short(value: float) -> str:
    """`0.2`, `200`, `20k`, `1M`: a tick that leaves room for its neighbours."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def title(text: str) -> str:
    """In one line if it fits above the axes, else what stands between `; ` on lines of its own, wrapped."""
    if len(text) <= TITLE_LETTERS:
        return text
    return "\n".join(textwrap.fill(part, TITLE_LETTERS) for part in text.split("; "))


def patches(looks: Iterable[tuple[str, str, str]]) -> list[Patch]:
    """The legend of bars. looks: colour, hatch and name of each."""
    with look():
        return [Patch(facecolor=c, hatch=h, edgecolor="white", label=name) for c, h, name in looks]


def stack(heights: Sequence[float], more: float = 0.0) -> tuple[Figure, list[Axes]]:
    """A figure of panels below each other, and these; heights, and `more` for what is around them, in inches.

    To be called within `look`.
    """
    figure = Figure(figsize=(WIDTH_IN, sum(heights) + more), layout="constrained")
    return figure, list(figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])


def panels(
    drawn: Sequence[Any],
    draw: Callable[[Axes, Any], None],
    height: Callable[[Any], float],
    nothing: str = "",
    more: float = 0.0,
    legend: Mapping | None = None,
) -> Figure:
    """A panel for each of `drawn`, below each other; the sentence `nothing` where there is none.

    draw: one panel. height: of one, in inches, `more` of what is around them. legend: handles and their
    columns, above all.
    """
    if not drawn:
        return sentence_figure(nothing)
    with look():
        figure, axes = stack([height(one) for one in drawn], more)
        for axis, one in zip(axes, drawn, strict=True):
            draw(axis, one)
        if legend:
            figure.legend(**legend, loc="outside upper left")
    return figure


def rows(axis: Axes, names: Sequence[str], room: float = 0.5) -> None:
    """A line a row, from the top down, with these names; room: above the first and below the last."""
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 1 + room, -room)
    axis.tick_params(axis="y", length=0)


def whiskers(rows: pd.DataFrame) -> np.ndarray:
    """Distances from images_per_s to its smallest and to its largest value, (2, n), for an errorbar."""
    middle, low, high = (rows[f"images_per_s{end}"].to_numpy(float) for end in ("", "_min", "_max"))
    return np.array([middle - low, high - middle])


def sentence_figure(sentence: str) -> Figure:
    """A figure that says in words why there is nothing to draw."""
    with look():
        figure = Figure(figsize=(WIDTH_IN, 1.2), layout="constrained")
        figure.text(0.02, 0.5, textwrap.fill(sentence, 100), va="center", color="#333333")
    return figure


def to_svg(figure: Figure) -> str:
    """The figure as an SVG document; the same figure gives the same text."""
    buffer = io.StringIO()
    with look():
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


PLACES = re.compile(r'(\s(?:d|points|transform|x|y|x1|x2|y1|y2|width|height)=")([^"]*)"')
LONG = re.compile(r"-?\d+\.\d{3,}")


def compact(svg: str) -> str:
    """The same drawing in fewer bytes: places to a hundredth of a point, no comments, one font family."""
    svg = PLACES.sub(lambda found: found[1] + LONG.sub(_shorter, found[2]) + '"', svg)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font-family: [^;\"]*", "font-family: 'DejaVu Sans', sans-serif", svg)
    svg = re.sub(r"(font: [^;\"]*?px )[^;\"]*", r"\1'DejaVu Sans', sans-serif", svg)
    return re.sub(r"\s*\n\s*", "\n", re.sub(r">\s+<", "><", svg))


def _shorter(number: re.Match) -> str:
    return f"{float(number.group()):.2f}".rstrip("0").rstrip(".")


def inline_svg(svg: str, prefix: str, title: str) -> str:
    """The `<svg>` element alone, its ids made unique on a page by `prefix` (letters, digits, hyphens)."""
    element = compact(svg[svg.index("<svg ") :])
    element = re.sub(r'\bid="', f'id="{prefix}-', element)
    element = re.sub(r"url\(#", f"url(#{prefix}-", element)
    element = re.sub(r'href="#', f'href="#{prefix}-', element)
    safe = title.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return element.replace("<svg ", f'<svg role="img" aria-label="{safe}" ', 1)


def picture(figure: Figure, prefix: str, caption: str) -> dict[str, str]:
    """A figure as a section has it on the page: `svg`, with `prefix` before its ids, and `caption`."""
    return {"svg": Markup(inline_svg(to_svg(figure), prefix, caption)), "caption": caption}
