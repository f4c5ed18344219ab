"""One look for all figures: SVG with real text, colours that survive colour blindness and a grey print."""

import io
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import unescape
from pathlib import Path
from typing import Any

import jinja2
import matplotlib as mpl
import numpy as np
import pandas as pd
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullLocator

TEMPLATES = Path(__file__).parent / "templates"
# Okabe and Ito, "Color Universal Design" (2008): distinct under the common colour blindnesses.
BLUE, ORANGE, SKY, GREEN, VERMILION, GREY = "#0072B2", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#6B6B6B"
LINE_COLOURS = (BLUE, VERMILION, GREEN, ORANGE, SKY, GREY)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":")
WIDTH_IN = 5.4  # narrow, so that letters can be read on a phone
TITLE_LETTERS = 50  # that fit beside each other above axes of a figure of that width
ROW_LETTERS = 68  # of a row's name and value together
BEHIND_NAMES = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # keeps lines of the grid off them
ROW_IN, BAR, LINE_IN = 0.48, 0.4, 0.15  # height of a row, share of it that is a bar, a further line of a name
INKS = {  # what follows the colours of a page
    "#000000": "--ink", "#333333": "--ink", "#2e2e2e": "--ink", "#ffffff": "--paper", "#dddddd": "--line",
    "#e4e4e4": "--line", "#0072b2": "--blue", "#d55e00": "--vermilion", "#6b6b6b": "--soft",
    "#606060": "--soft",
}  # fmt: skip
HINT = "hint: "  # begins the gid of what has a hint
MOST_HINTS = 30  # in an alternative text
MOST_PANELS = 12  # of a figure; each takes a third of a CPU second
# Whiskers of bars that have no look of their own.
RANGE = {"fmt": "none", "ecolor": "black", "capsize": 2, "lw": 1, "zorder": 3}
ABOVE = {"textcoords": "offset points", "ha": "center", "fontsize": 8}  # of a number above a mark

SETTINGS = {
    "svg.fonttype": "none",  # text stays text: it can be searched, copied and read aloud
    "svg.hashsalt": "gpufeed",  # the same data gives the same bytes
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#E4E4E4",
    "hatch.linewidth": 0.8,
    "legend.frameon": False,
}


def templates() -> jinja2.Environment:
    """Return the environment of page templates: values are escaped, unknown names are errors."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def part(name: str) -> Markup:
    """Return a style sheet or a script of TEMPLATES, for inclusion in a page."""
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))


def look():
    """Return the context in which a figure is both made and saved."""
    return mpl.rc_context(SETTINGS)


def line(number: int) -> dict[str, str]:
    """Return colour, marker and dashes of a line by its number.

    The three repeat after 6, 7 and 4: marker and dashes alone tell 28 lines apart, without any colour.
    """
    return {
        "color": LINE_COLOURS[number % len(LINE_COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "ls": LINES[number % len(LINES)],
    }


def point(number: int) -> dict[str, str]:
    """Return colour, marker and face of a point by its number; 14 differ without colour, 7 are hollow."""
    look, hollow = line(number), number // len(MARKERS) % 2
    return look | {"mfc": "white" if hollow else look["color"], "ls": "none"}


def plain_ticks(axis: Axis) -> None:
    """Set the ticks of a logarithmic axis at 1, 2 and 5, in short numbers."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: short(value))


def short(value: float) -> str:
    """Return a short tick, such as `0.2`, `200`, `20k` or `1M`."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def title(text: str) -> str:
    """Return a title in one line if it fits, else a line for each part between `; `, wrapped."""
    if len(text) <= TITLE_LETTERS:
        return text
    return "\n".join(textwrap.fill(part, TITLE_LETTERS) for part in text.split("; "))


def patches(looks: Iterable[tuple[str, str, str]]) -> list[Patch]:
    """Return the legend of bars. looks: colour, hatch and name of each."""
    with look():
        return [Patch(facecolor=c, hatch=h, edgecolor="white", label=name) for c, h, name in looks]


def stack(heights: Sequence[float], more: float = 0.0) -> tuple[Figure, list[Axes]]:
    """Return a figure of panels below each other, and the panels. heights, more: in inches; more: around all.

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
    head: float = 0.0,
    left_out: int = 0,
) -> Figure:
    """Draw a panel for each of `drawn`, below each other; the sentence `nothing` if there is none.

    draw: one panel. height: of one, in inches, `head` of its title and axis, `more` of what is around all.
    legend: handles and their columns, above all. left_out: panels that are not in `drawn`; those beyond the
    first MOST_PANELS are left out, too, and counted below the others.
    """
    if not drawn:
        return sentence_figure(nothing)
    left_out += max(0, len(drawn) - MOST_PANELS)
    drawn = drawn[:MOST_PANELS]
    with look():
        figure, axes = stack([height(one) for one in drawn], more + head * len(drawn))
        for axis, one in zip(axes, drawn, strict=True):
            draw(axis, one)
        count_left_out(figure, left_out)
        if legend:
            figure.legend(**legend, loc="outside upper left")
    return figure


def most(drawn: Sequence[Any]) -> list[Any]:
    """Return the MOST_PANELS longest of `drawn`, in their order."""
    longest = sorted(range(len(drawn)), key=lambda number: -len(drawn[number]))[:MOST_PANELS]
    return [drawn[number] for number in sorted(longest)]


def count_left_out(figure: Figure, left_out: int) -> None:
    """Say below the panels of a figure how many more there are, if any, and where their numbers stand."""
    if left_out:
        size = figure.get_size_inches()
        figure.set_size_inches(size[0], size[1] + 0.3)
        words = "1 more panel is" if left_out == 1 else f"{left_out:,} more panels are"
        figure.supxlabel(f"{words} not drawn: the table has the numbers", fontsize=9)


def rows(axis: Axes, names: Sequence[str], values: Sequence[str] = ()) -> None:
    """Name the rows from the top down, each name and value above its bar."""
    places = [y - BAR / 2 - 0.02 for y in range(len(names))]
    axis.set_yticks(places, row_names(names, values), ha="left", va="bottom", bbox=BEHIND_NAMES)
    axis.tick_params(axis="y", length=0, pad=0)
    axis.spines["left"].set_visible(False)
    axis.set_ylim(len(names) - 1 + BAR, -1.25 + BAR)


def row_names(names: Iterable[str], values: Sequence[str]) -> list[str]:
    """Return the name of each row with its value, if rows have any, in as many lines as they need."""
    said = [f"{name}: {value}" for name, value in zip(names, values, strict=True)] if values else names
    return [textwrap.fill(text, ROW_LETTERS) for text in said]


def rows_in(names: Iterable[str], values: Sequence[str] = ()) -> float:
    """Return the height of rows in inches, each as high as the longest name needs."""
    lines = [text.count("\n") for text in row_names(names, values)]
    return (ROW_IN + LINE_IN / (1 - BAR) * max(lines, default=0)) * len(lines)


def hint(artist: Any, text: str) -> None:
    """Give an artist a hint, shown under the pointer and in the alternative text of its figure."""
    artist.set_gid(HINT + text)


def hint_points(axis: Axes, x: Iterable[float], y: Iterable[float], texts: Iterable[str]) -> None:
    """Lay an invisible mark with a hint over each point."""
    for at, height, text in zip(x, y, texts, strict=True):
        (mark,) = axis.plot([at], [height], marker="o", ms=11, ls="none", mew=0, alpha=0)
        hint(mark, text)


def whiskers(rows: pd.DataFrame) -> np.ndarray:
    """Return the distances from images_per_s to its min and max, (2, n), for an errorbar."""
    middle, low, high = (rows[f"images_per_s{end}"].to_numpy(float) for end in ("", "_min", "_max"))
    return np.array([middle - low, high - middle])


def spread(places: Sequence[float], gap: float, top: float) -> np.ndarray:
    """Move ascending places as little as possible, so that neighbours are `gap` apart or more.

    They stay between 0 and `top` where there is room.
    """
    # least squares with an order (pool adjacent violators) on the places less their least offsets
    offsets = np.arange(len(places)) * gap
    blocks: list[list[float]] = []  # [sum, count]
    for value in np.asarray(places) - offsets:
        blocks.append([float(value), 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] >= blocks[-1][0] / blocks[-1][1]:
            total, number = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += number
    flat = [total / number for total, number in blocks for _ in range(int(number))]
    return np.clip(np.array(flat) + offsets, offsets, top - offsets[::-1])


def sentence_figure(sentence: str) -> Figure:
    """Draw a sentence that says why there is nothing to draw."""
    with look():
        figure = Figure(figsize=(WIDTH_IN, 1.2), layout="constrained")
        figure.text(0.02, 0.5, textwrap.fill(sentence, 100), va="center", color="#333333")
    return figure


def to_svg(figure: Figure) -> str:
    """Return the figure as an SVG document; the same figure gives the same text."""
    buffer = io.StringIO()
    with look():
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return compact(re.sub(f'<g id="{HINT}([^"]*)">', r"<g><title>\1</title>", buffer.getvalue()))


PLACES = re.compile(r'(\s(?:d|points|transform|x|y|x1|x2|y1|y2|width|height)=")([^"]*)"')
LONG = re.compile(r"-?\d+\.\d{3,}")


def compact(svg: str) -> str:
    """Return the same drawing in fewer bytes: rounded coordinates, one font, no comments or unused ids.

    Ids are numbers by place: matplotlib's are hashes of coordinates whose last digits change from run to run.
    """

    def rounded(number: re.Match) -> str:
        return f"{float(number.group()):.2f}".rstrip("0").rstrip(".")

    def numbered(reference: re.Match) -> str:
        return reference[1] + ids.setdefault(reference[2], f"i{len(ids)}")

    ids: dict[str, str] = {}
    svg = PLACES.sub(lambda found: found[1] + LONG.sub(rounded, found[2]) + '"', svg)
    svg = re.sub(r'((?:url\(|href=")#)([^")]*)', numbered, svg)
    svg = re.sub(r' id="([^"]*)"', lambda found: f' id="{ids[found[1]]}"' if found[1] in ids else "", svg)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font-family: [^;\"]*", "font-family: 'DejaVu Sans', sans-serif", svg)
    svg = re.sub(r"(font: [^;\"]*?px )[^;\"]*", r"\1'DejaVu Sans', sans-serif", svg)
    return re.sub(r"\s*\n\s*", "\n", re.sub(r">\s+<", "><", svg))


def inline_svg(svg: str, prefix: str, title: str) -> str:
    """Return the `<svg>` element alone; `prefix` (letters, digits, hyphens) makes its ids unique."""
    element = svg[svg.index("<svg ") :]
    element = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", element)
    for colour, ink in INKS.items():
        element = re.sub(rf"{colour}\b", f"var({ink})", element)
    return element.replace("<svg ", f'<svg role="img" aria-label="{escape(title)}" ', 1)


def picture(figure: Figure, prefix: str, caption: str) -> dict[str, str]:
    """Return a figure for a section: `svg`, whose ids begin with `prefix`, and `caption`.

    Its alternative text has the values that the figure shows under the pointer.
    """
    svg = to_svg(figure)
    hints = [unescape(text) for text in dict.fromkeys(re.findall("<g><title>(.*?)</title>", svg, re.DOTALL))]
    more = f"; and {len(hints) - MOST_HINTS} more" if len(hints) > MOST_HINTS else ""
    alt = "Figure. " + ("; ".join(hints[:MOST_HINTS]) + more or caption)
    return {"svg": Markup(inline_svg(svg, prefix, alt)), "caption": caption}
