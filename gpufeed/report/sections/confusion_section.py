"""The part of the report on kept models: how often each is right, and which classes it confuses."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from gpufeed.core.document import MAKE_AGAIN
from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import write_whole
from gpufeed.core.record import EVALUATION
from gpufeed.report import style, wording
from gpufeed.report.sections import confusion_figure

NAMED = 3  # pairs in a sentence
PREDICTED = 100  # images whose predictions the page shows
BEST = 2  # classes shown for each image
CAPTION = (
    "Rows are true classes, columns predicted ones. The colour is the share of the images of the true class, "
    "on a scale that shows small shares; grey rows have no image. Below, the pairs confused most often."
)


def read(path: str | Path) -> dict[str, Any]:
    """An evaluation; raises GpufeedError if it is damaged, or if its matrix is not that of its classes."""
    found = EVALUATION.read(path)
    classes = len(found["classes"])
    lengths = [len(row) for row in found["confusion"]]
    if lengths != [classes] * classes or (found["status"] == "done" and not classes):
        raise GpufeedError(
            f"{path}: a matrix of {len(lengths)} rows for {classes} classes",
            "a row and a column a class",
            MAKE_AGAIN,
        )
    return found


def plot(path: str | Path, out: str | Path) -> None:
    """Writes the figure of one evaluation as SVG; without a matrix it says why in a sentence."""
    write_whole(out, style.to_svg(draw(read(path))))


def draw(found: Mapping) -> Figure:
    """The figure of an evaluation."""
    if found["status"] != "done":
        return style.sentence_figure(f"Nothing to draw, {found['status']}: {found['sentence']}")
    matrix = np.array(found["confusion"])
    return confusion_figure.draw(matrix, found["classes"], confused(matrix, found["classes"]), title(found))


def confused(matrix: np.ndarray, classes: Sequence[str]) -> list[confusion_figure.Pair]:
    """All pairs of different classes that were confused, the most frequent first.

    matrix: int64 (classes, classes), true classes in rows.
    """
    wrong = matrix - np.diag(matrix.diagonal())
    rows, columns = np.nonzero(wrong)
    order = np.argsort(-wrong[rows, columns], kind="stable")
    of = matrix.sum(axis=1)
    return [
        confusion_figure.Pair(classes[row], classes[column], int(matrix[row, column]), int(of[row]))
        for row, column in zip(rows[order], columns[order], strict=True)
    ]


def title(found: Mapping) -> str:
    """What was trained, such as `resnet18 on cifar10, fastai, augment fused, fp16, batch 512, 4 epochs`."""
    cell = found["cell"]
    parts = [
        f"{cell['model']} on {cell['dataset']}",
        f"trainer {cell['trainer']}",
        f"loader {cell['loader']}",
        f"augment {cell['augment']}",
        found["trained"]["precision"] if found["trained"] else cell["precision"],
        f"batch {cell['batch_size']}",
    ]
    parts.append(wording.plural(cell["steps"] or cell["epochs"], "step" if cell["steps"] else "epoch"))
    return ", ".join([*parts, *cell["overrides"]])


def sentences(found: Mapping) -> list[str]:
    """What a done evaluation says: how often it is right, by class, and which classes are confused most."""
    matrix, classes = np.array(found["confusion"]), found["classes"]
    said = [
        f"{found['correct']:,} of the {found['n']:,} images of split {found['split']} get their own class "
        f"({wording.percent(found['top1'])}), loss {found['loss']:.3g}."
    ]
    known = [(share, name) for share, name in zip(found["recall"], classes, strict=True) if share is not None]
    (low, worst), (high, best) = min(known), max(known)
    if high > low:
        said.append(
            f"Recognised best is {best} ({wording.percent(high)} of its images), least {worst} "
            f"({wording.percent(low)})."
        )
    pairs = confused(matrix, classes)[:NAMED]
    if not pairs:
        return [*said, "No class is taken for another one."]
    told = [
        f"{pair.true} taken for {pair.predicted} ({pair.count:,} of {pair.of:,} images)" for pair in pairs
    ]
    return [*said, f"Confused most often: {wording.listing(told)}."]


def section(paths: Iterable[str | Path], experiment: str, planned: Sequence[str]) -> dict | None:
    """What the template shows of an experiment's kept models; None if it neither has nor plans any.

    paths: evaluations of all experiments, <experiment>/<cell>/evaluation.json. planned: ids of the cells
    whose models are to be kept.
    """
    ours = [path for path in map(Path, paths) if path.parent.parent.name == experiment]
    if not ours and not planned:
        return None
    models, troubles = [], []
    for path in ours:
        cell = path.parent.name
        try:
            found = read(path)
            shown = model(found, path) if found["status"] == "done" else None
        except GpufeedError as error:
            troubles.append({"status": "damaged", "cell": cell, "sentence": error.found.splitlines()[0]})
            continue
        if found["status"] != "done":
            troubles.append({"status": found["status"], "cell": cell, "sentence": found["sentence"]})
            continue
        models.append(shown)
    there = {path.parent.name for path in ours}
    missing = [cell for cell in planned if cell not in there]
    return {"models": models, "troubles": troubles, "missing": missing}


def model(found: Mapping, path: Path) -> dict:
    """Return title, sentences and picture of one evaluation; `file`: the model beside it, if it is there.

    `predictions`: at most PREDICTED of those beside it.
    """
    caption = f"{title(found)}: {CAPTION}"
    environment = found["environment"]
    gpu = environment["gpu"] if found["resolved"]["device"] == "cuda" else None
    file = path.with_name("model.pt")
    return {
        "title": title(found),
        "machine": f"{gpu['name'] if gpu else environment['cpu']}, torch {environment['versions']['torch']}",
        "sentences": sentences(found),
        "svg": Markup(style.inline_svg(style.to_svg(draw(found)), f"confusion-{found['cell_id']}", caption)),
        "caption": caption,
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
        raise GpufeedError(
            f"{path}: damaged ({type(error).__name__}: {error})", "a CSV of the rule predict", MAKE_AGAIN
        ) from error


def prediction(row: Mapping[str, str]) -> dict:
    """Convert one row of such a CSV."""
    pairs = [(row.get(f"class_{place}"), row.get(f"probability_{place}")) for place in range(1, BEST + 1)]
    classes = [(name, wording.percent(float(share))) for name, share in pairs if name]
    return {
        "file": "/".join(Path(row["file"]).parts[-2:]),
        "classes": classes,
        "reason": row["reason"],
    }
