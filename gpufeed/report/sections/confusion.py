"""The part of the report on saved models: how often each is right, which classes it confuses, the figure."""

import csv
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from gpufeed.core.document import MAKE_AGAIN
from gpufeed.core.errors import GpufeedError
from gpufeed.core.record import EVALUATION
from gpufeed.report import style, wording
from gpufeed.report.load_records import read_documents


@dataclass(frozen=True)
class Pair:
    """`count` of the `of` images of class `true` were predicted to be of class `predicted`."""

    true: str
    predicted: str
    count: int
    of: int


NAMED = 3  # pairs in a sentence
PREDICTED = 100  # images whose predictions the page shows
BEST = 2  # classes shown for each image
CAPTION = (
    "Rows are true classes, columns predicted ones. The colour is the share of the images of the true class, "
    "on a scale that shows small shares; grey rows have no image. Below, the pairs confused most often."
)


def read(path: str | Path) -> dict[str, Any]:
    """Read an evaluation; raise GpufeedError if it is damaged, or if its matrix does not fit its classes."""
    found = EVALUATION.read(path)
    classes = len(found["classes"])
    lengths = [len(row) for row in found["confusion"]]
    if lengths != [classes] * classes or (found["status"] == "done" and not classes):
        wrong = f"{path}: a matrix of {len(lengths)} rows for {classes} classes"
        raise GpufeedError(wrong, "a row and a column a class", MAKE_AGAIN)
    return found


def draw(found: Mapping) -> Figure:
    """Draw the matrix of an evaluation, and the pairs of classes that it confuses most often."""
    if found["status"] != "done":
        return style.sentence_figure(f"Nothing to draw, {found['status']}: {found['sentence']}")
    matrix, classes = np.array(found["confusion"]), found["classes"]
    pairs = confused(matrix, classes)[:MOST_PAIRS]
    with style.look():
        figure, axes = style.stack([MATRIX_IN, 0.8 + style.ROW_IN * len(pairs)] if pairs else [MATRIX_IN])
        draw_matrix(axes[0], matrix, classes)
        figure.suptitle(textwrap.fill(title(found), TITLE_WIDTH), x=0.01, ha="left", fontsize=9)
        if pairs:
            draw_pairs(axes[1], pairs)
    return figure


def confused(matrix: np.ndarray, classes: Sequence[str]) -> list[Pair]:
    """Return all pairs of different classes that were confused, the most frequent first.

    matrix: int64 (classes, classes), true classes in rows.
    """
    wrong = matrix - np.diag(matrix.diagonal())
    rows, columns = np.nonzero(wrong)
    order = np.argsort(-wrong[rows, columns], kind="stable")
    of = matrix.sum(axis=1)
    ordered = zip(rows[order], columns[order], strict=True)
    counted = ((row, column, int(matrix[row, column]), int(of[row])) for row, column in ordered)
    return [Pair(classes[row], classes[column], *counts) for row, column, *counts in counted]


def title(found: Mapping) -> str:
    """Return what was trained, as `resnet18 on cifar10, fastai, augment fused, fp16, batch 512, 4 epochs`."""
    cell = found["cell"]
    parts = [
        f"{cell['model']} on {cell['dataset']}",
        *(f"{name} {cell[name]}" for name in ("trainer", "loader", "augment")),
        found["trained"]["precision"] if found["trained"] else cell["precision"],
        f"batch {cell['batch_size']}",
        wording.plural(cell["steps"] or cell["epochs"], "step" if cell["steps"] else "epoch"),
    ]
    return ", ".join([*parts, *cell["overrides"]])


def sentences(found: Mapping) -> list[str]:
    """Return what a finished evaluation says: accuracy, by class, and which classes are confused most."""
    matrix, classes = np.array(found["confusion"]), found["classes"]
    said = [
        f"{found['correct']:,} of the {found['n']:,} images of split {found['split']} get their own class "
        f"({wording.percent(found['top1'])}), loss {found['loss']:.3g}."
    ]
    known = [(share, name) for share, name in zip(found["recall"], classes, strict=True) if share is not None]
    (low, worst), (high, best) = min(known), max(known)
    if high > low:
        most = f"{best} ({wording.percent(high)} of its images)"
        said.append(f"Recognised best is {most}, least {worst} ({wording.percent(low)}).")
    pairs = confused(matrix, classes)[:NAMED]
    if not pairs:
        return [*said, "No class is taken for another one."]
    named = [f"{one.true} taken for {one.predicted} ({one.count:,} of {one.of:,} images)" for one in pairs]
    return [*said, f"Confused most often: {wording.listing(named)}."]


def section(paths: Iterable[str | Path], experiment: str, planned: Sequence[str]) -> dict | None:
    """Return what the template shows of an experiment's kept models; None if it neither has nor plans any.

    paths: evaluations of all experiments, <experiment>/<cell>/evaluation.json. planned: ids of the cells
    whose models are to be kept.
    """
    documents = read_documents("evaluations", paths, experiment, with_model, planned)
    if not documents:
        return None
    documents.tell_unfinished()
    for one in documents.troubles:
        one["who"] = Markup("<code>{}</code>").format(one["who"])
    models = [found["model"] for _, found in documents.found if found["model"]]
    return {"models": models, **documents.lacking}


def with_model(path: Path) -> dict[str, Any]:
    """Return an evaluation, with `model` for the template if it is done."""
    found = read(path)
    return {**found, "model": model(found, path) if found["status"] == "done" else None}


def model(found: Mapping, path: Path) -> dict:
    """Return title, sentences and picture of one evaluation; `file`: the model beside it, if it is there.

    `predictions`: at most PREDICTED of those beside it.
    """
    caption = f"{title(found)}: {CAPTION}"
    file = path.with_name("model.pt")
    return {
        "title": title(found),
        "machine": wording.measured_on(found["environment"], found["resolved"]["device"] == "cuda"),
        "sentences": sentences(found),
        **style.picture(draw(found), f"confusion-{found['cell_id']}", caption),
        "file": file.as_posix() if file.exists() else None,
        "predictions": predictions(path.with_name("predictions.csv")),
    }


def predictions(path: Path) -> list[dict]:
    """Read the first rows of a CSV of predictions: `file` in its folder, `classes` [(name, share)], `reason`.

    Raises GpufeedError if the CSV is damaged.
    """
    if not path.exists():
        return []
    try:
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            return [prediction(row) for row in islice(csv.DictReader(file), PREDICTED)]
    except (csv.Error, KeyError, TypeError, ValueError) as error:
        wrong = f"{path}: damaged ({type(error).__name__}: {error})"
        raise GpufeedError(wrong, "a CSV of the rule predict", MAKE_AGAIN) from error


def prediction(row: Mapping[str, str]) -> dict:
    """Convert one row of such a CSV."""
    pairs = [(row.get(f"class_{place}"), row.get(f"probability_{place}")) for place in range(1, BEST + 1)]
    classes = [(name, wording.percent(float(share))) for name, share in pairs if name]
    return {"file": "/".join(Path(row["file"]).parts[-2:]), "classes": classes, "reason": row["reason"]}


MATRIX_IN = 5.2  # height of the matrix with its names
MOST_COUNTS = 20  # classes up to which each field has its count
MOST_NAMES = 45  # classes up to which each row has its name, in letters of six points or more
MOST_PAIRS = 10
TITLE_WIDTH = 80  # letters of a line
LONGEST = 18  # letters of a name
NORM = PowerNorm(0.5, vmin=0, vmax=1)  # a share of 1 % has a tenth of the scale
COLOURS = colormaps["Blues"].with_extremes(bad="#C8C8C8")
DARK = 0.715  # of the scale of COLOURS: from here on white has a higher contrast than black (WCAG 2.2)


def draw_matrix(axis: Axes, matrix: np.ndarray, classes: Sequence[str]) -> None:
    """Draw the share of each true class that was predicted to be of each class, as colours."""
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
    ticks = [0, 0.01, 0.05, 0.1, 0.25, 0.5, 1]
    bar = axis.figure.colorbar(image, ax=axis, shrink=0.8, ticks=ticks, format=PercentFormatter(1))
    bar.set_label("share of the images of the true class")


def name_classes(axis: Axes, classes: Sequence[str]) -> None:
    """Name each row and column, in letters as large as the space allows."""
    names = [shortened(name) for name in classes]
    size = 9 if len(names) <= MOST_COUNTS else 6.5
    axis.set_xticks(range(len(names)), names, rotation=90, fontsize=size)
    axis.set_yticks(range(len(names)), names, fontsize=size)


def write_counts(axis: Axes, matrix: np.ndarray, shares: np.ma.MaskedArray) -> None:
    """Write the count of each field that is not empty, in black or white, whichever stands out."""
    look = {"ha": "center", "va": "center", "fontsize": 8 if len(matrix) <= 12 else 6}
    for row, column in np.argwhere(matrix):
        ink = "white" if NORM(shares[row, column]) >= DARK else "black"
        axis.text(column, row, str(matrix[row, column]), color=ink, **look)


def draw_pairs(axis: Axes, pairs: Sequence[Pair]) -> None:
    """Draw the pairs confused most often, as bars with their counts."""
    names = [f"{shortened(pair.true)} taken for {shortened(pair.predicted)}" for pair in pairs]
    counts = [pair.count for pair in pairs]
    said = [f"{pair.count:,} of {pair.of:,}" for pair in pairs]
    bars = axis.barh(range(len(pairs)), counts, color=style.BLUE, height=style.BAR)
    for bar, name, words in zip(bars, names, said, strict=True):
        style.hint(bar, f"{name}: {words} images")
    style.rows(axis, names, said)
    axis.set_xlabel("images")
    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axis.xaxis.set_major_formatter("{x:,.0f}")


def shortened(name: str) -> str:
    """Return the name of a class, cut with an ellipsis if it has more than LONGEST letters."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
