"""A confusion matrix as a picture that can be read with ten classes and with two hundred."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from gpufeed.report import style

MATRIX_IN, BAR_IN = 6.4, 0.24  # height of the matrix with its names, and of one bar
MOST_COUNTS = 20  # classes up to which each field has its count
MOST_NAMES = 45  # classes up to which each row has its name, in letters of six points or more
MOST_PAIRS = 10
TITLE_WIDTH = 120  # letters of a line
LONGEST = 18  # letters of a name
NORM = PowerNorm(0.5, vmin=0, vmax=1)  # a share of 1 % has a tenth of the scale
COLOURS = colormaps["Blues"].with_extremes(bad="#C8C8C8")
WHITE, BLACK = (1.0, 1.0, 1.0), (0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Pair:
    """`count` of the `of` images of class `true` were predicted to be of class `predicted`."""

    true: str
    predicted: str
    count: int
    of: int


def draw(matrix: np.ndarray, classes: Sequence[str], pairs: Sequence[Pair], title: str) -> Figure:
    """matrix: int64 (classes, classes), true classes in rows; pairs: the confused ones."""
    pairs = pairs[:MOST_PAIRS]
    with style.look():
        bars_in = 0.8 + BAR_IN * len(pairs) if pairs else 0
        figure = Figure(figsize=(style.WIDTH_IN, MATRIX_IN + bars_in), layout="constrained")
        rows = 2 if pairs else 1
        axes = figure.subplots(rows, 1, squeeze=False, height_ratios=[MATRIX_IN, bars_in][:rows])[:, 0]
        draw_matrix(axes[0], matrix, classes)
        figure.suptitle(textwrap.fill(title, TITLE_WIDTH), x=0.01, ha="left", fontsize=9)
        if pairs:
            draw_pairs(axes[1], pairs)
    return figure


def draw_matrix(axis: Axes, matrix: np.ndarray, classes: Sequence[str]) -> None:
    """The share of each true class that was predicted to be of each class, as colours."""
    of = matrix.sum(axis=1, keepdims=True)
    shares = np.ma.masked_array(matrix / np.maximum(of, 1), np.broadcast_to(of == 0, matrix.shape))
    image = axis.imshow(shares, cmap=COLOURS, norm=NORM, interpolation="none")
    axis.set(xlabel="predicted class", ylabel="true class")
    axis.spines[:].set_visible(True)
    if len(classes) <= MOST_NAMES:
        name_classes(axis, classes)
    else:
        for side in (axis.xaxis, axis.yaxis):
            side.set_major_locator(MaxNLocator(10, integer=True))
        axis.set(xlabel="predicted class, by its number", ylabel="true class, by its number")
    if len(classes) <= MOST_COUNTS:
        write_counts(axis, matrix, shares)
    bar = axis.figure.colorbar(
        image, ax=axis, shrink=0.8, ticks=[0, 0.01, 0.05, 0.1, 0.25, 0.5, 1], format=PercentFormatter(1)
    )
    bar.set_label("share of the images of the true class")


def name_classes(axis: Axes, classes: Sequence[str]) -> None:
    """A name a row and a column, as large as its place allows."""
    names = [shortened(name, LONGEST) for name in classes]
    size = 9 if len(names) <= MOST_COUNTS else 6.5
    axis.set_xticks(range(len(names)), names, rotation=90, fontsize=size)
    axis.set_yticks(range(len(names)), names, fontsize=size)


def write_counts(axis: Axes, matrix: np.ndarray, shares: np.ma.MaskedArray) -> None:
    """The count of each field that is not empty, in black or white, whichever stands out."""
    size = 8 if len(matrix) <= 12 else 6
    for row, column in np.argwhere(matrix):
        background = COLOURS(NORM(shares[row, column]))
        colour = ink(background[:3])
        axis.text(
            column, row, str(matrix[row, column]), ha="center", va="center", fontsize=size, color=colour
        )


def draw_pairs(axis: Axes, pairs: Sequence[Pair]) -> None:
    """The pairs confused most often, as bars with their counts."""
    names = [
        f"{shortened(pair.true, LONGEST)} taken for {shortened(pair.predicted, LONGEST)}" for pair in pairs
    ]
    counts = [pair.count for pair in pairs]
    axis.barh(range(len(pairs)), counts, color=style.BLUE, height=0.7)
    axis.set_yticks(range(len(pairs)), names, fontsize=9)
    axis.invert_yaxis()
    for place, pair in enumerate(pairs):
        said = f"{pair.count:,} of {pair.of:,}"
        axis.annotate(said, (pair.count, place), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axis.set_xlim(0, max(counts) * 1.2)
    axis.set_xlabel("images")
    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:,.0f}"))


def ink(background: Sequence[float]) -> tuple[float, ...]:
    """Black or white, whichever has the higher contrast with an RGB colour in 0..1."""
    return max((WHITE, BLACK), key=lambda colour: contrast(background, colour))


def contrast(one: Sequence[float], other: Sequence[float]) -> float:
    """The contrast ratio of two RGB colours in 0..1, from 1 to 21. Source: WCAG 2.2, contrast ratio."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: Sequence[float]) -> float:
    """Relative luminance of an sRGB colour in 0..1. Source: WCAG 2.2, relative luminance."""
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def shortened(text: str, most: int) -> str:
    """The text, or its beginning with an ellipsis where it has more than `most` letters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
