"""Evaluates a saved model on its dataset's evaluation split: accuracy and confusion matrix."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpufeed.benchmarks.cell_document import cell_document
from gpufeed.benchmarks.saved_models.model_file import SavedModel, load
from gpufeed.core.cells import Cell
from gpufeed.core.errors import GpufeedError
from gpufeed.core.record import EVALUATION
from gpufeed.datasets.manifest import Manifest
from gpufeed.system.devices import apply_precision
from gpufeed.training.cell_training import judge
from gpufeed.training.runtime_context import RuntimeContext, Stores, load_request, make_augment

MOST_CLASSES = 1000  # with a million entries in the matrix


def confusion_matrix(labels: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """Return counts, int64 (classes, classes), of images with true class [row] and predicted class [column].

    labels, predicted: int64 (n,), each in 0..classes-1.
    """
    pairs = labels * classes + predicted
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def recall_by_class(matrix: np.ndarray) -> list[float | None]:
    """Return for each class the share of its images that were predicted as it; None without images."""
    return shares(matrix.diagonal(), matrix.sum(axis=1))


def precision_by_class(matrix: np.ndarray) -> list[float | None]:
    """Return for each class the share of correct predictions of it; None if it was never predicted."""
    return shares(matrix.diagonal(), matrix.sum(axis=0))


def shares(parts: np.ndarray, wholes: np.ndarray) -> list[float | None]:
    """Return parts / wholes as Python numbers, None where the whole is 0."""
    pairs = zip(parts.tolist(), wholes.tolist(), strict=True)
    return [part / whole if whole else None for part, whole in pairs]


def evaluate_model(
    cell: dict, model: str | Path, manifest: str | Path, stores: Stores, planned_on: str, **asked: Any
) -> dict[str, Any]:
    """Return the evaluation (gpufeed/core/schemas/evaluation.schema.yaml) of the cell's model.pt.

    The images come through the cell's own loader, as after the training of a repeat. planned_on, asked: as in
    cell_document.
    """

    def work(cell: Cell, place: RuntimeContext) -> dict[str, Any]:
        return judged(cell, Path(model), Path(manifest), stores, place)

    return cell_document(cell, work, NOTHING, planned_on, **asked)


NOTHING = {
    **dict.fromkeys(("trained", "resolved", "split", "n", "correct", "top1", "loss")),
    **{key: [] for key in ("classes", "confusion", "recall", "precision")},
}


def judged(cell: Cell, model: Path, manifest: Path, stores: Stores, place: RuntimeContext) -> dict[str, Any]:
    """Return the fields that a finished evaluation adds to its document; raise Skip or what stops it."""
    saved, samples = load(model), Manifest.read(manifest)
    check_classes(saved, samples)
    fitted = saved.about["resolved"].get("batch_size", cell.batch_size)
    cell = replace(cell, devices=1, nodes=1, batch_size=fitted)
    place.find(cell)
    apply_precision(place.precision)
    normalise = make_augment("none", cell, samples, cell.seed)
    request = load_request(cell, samples, stores, place.device, cell.seed, normalise)
    net = saved.build(place.device)
    if cell.channels_last:  # as in training, so that the same kernels run
        net.to(memory_format=torch.channels_last)
    answers = judge(cell, net, request, place.precision)
    matrix = confusion_matrix(answers.labels, answers.predicted, len(saved.classes))
    accuracy = answers.accuracy()
    return {
        "trained": saved.training(),
        "resolved": place.resolved(),
        "n": accuracy["images"],
        **{key: accuracy[key] for key in ("split", "correct", "top1", "loss")},
        "classes": saved.classes,
        "confusion": matrix.tolist(),
        "recall": recall_by_class(matrix),
        "precision": precision_by_class(matrix),
    }


def check_classes(saved: SavedModel, samples: Manifest) -> None:
    """Raise GpufeedError unless the dataset has the classes of the model, and not too many."""
    if saved.classes != samples.info.classes:
        raise GpufeedError(
            f"a model of {len(saved.classes)} classes, {', '.join(saved.classes[:3])} ..., for a dataset of "
            f"{len(samples.info.classes)}, {', '.join(samples.info.classes[:3])} ...",
            "the same classes in the same order",
            "train the model again",
        )
    if len(saved.classes) > MOST_CLASSES:
        raise GpufeedError(
            f"{len(saved.classes)} classes", f"at most {MOST_CLASSES} for a matrix", "use a smaller dataset"
        )


def for_job(job: Any) -> None:
    """Run rule evaluate_model. job: a gpufeed.job.Job."""
    job.take_gpus(1, job.cell["device"])
    found = evaluate_model(job.cell, job.input.model, job.input.manifest, job.stores, **job.common_arguments)
    job.write_document(found, job.output.evaluation, EVALUATION.write, f"evaluation of {job.wildcards.cell}")
