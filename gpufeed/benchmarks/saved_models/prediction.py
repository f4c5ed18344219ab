"""Predicts the classes of image files with a kept model."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpufeed.benchmarks.saved_models.image_files import Picture, Reader, batches, find, samples
from gpufeed.benchmarks.saved_models.model_file import SavedModel, load
from gpufeed.benchmarks.saved_models.predictions_output import Prediction, whole_file, write_predictions
from gpufeed.core.errors import Skip
from gpufeed.core.registry import fetch
from gpufeed.system.devices import apply_precision, resolve_device
from gpufeed.system.environment import cores_allowed

BATCH = 64  # images at once: 39 MB of float32 at 224 px, before the model's own
TOP = 5


class Predictor:
    """A model that is ready to predict, always in float32: results do not depend on the device."""

    def __init__(self, saved: SavedModel, device: torch.device):
        apply_precision("fp32")
        self.saved, self.device, self.model = saved, device, saved.build(device)
        given = saved.about["input"]
        self.normalise = fetch("augment", "none")(given["mean"], given["std"], 0, {})

    @torch.inference_mode()
    def probabilities(self, images: np.ndarray) -> np.ndarray:
        """Return probabilities, float32 (N, classes), of uint8 images (N, H, W, 3) of the model's size."""
        pixels = torch.from_numpy(images).to(self.device)
        ids = torch.arange(len(pixels), device=self.device)
        logits = self.model(self.normalise(pixels, ids, 0).contiguous())
        return logits.float().softmax(1).cpu().numpy()

    def predict(self, files: Iterable[str], top: int = TOP) -> Iterator[Prediction]:
        """Yield one prediction for each file and each image in a folder, in order, batch by batch.

        top: the number of classes, or all if there are fewer.
        """
        reader = Reader(self.saved.size, self.saved.recipe)
        for batch in batches(files, reader, BATCH, cores_allowed()):
            yield from self.of_batch(batch, top)

    def of_batch(self, batch: list[Picture], top: int) -> Iterator[Prediction]:
        """Yield the predictions of a batch, including files without pixels."""
        images = [picture.pixels for picture in batch if picture.pixels is not None]
        rows = iter(self.probabilities(np.stack(images))) if images else iter(())
        for picture in batch:
            if picture.pixels is None:
                yield Prediction(picture.path, (), picture.reason)
                continue
            row = next(rows)
            if not np.isfinite(row).all():
                yield Prediction(picture.path, (), "the model gives no finite number for it")
                continue
            order = np.argsort(-row, kind="stable")[:top]
            best = tuple((self.saved.classes[i], float(row[i])) for i in order)
            yield Prediction(picture.path, best)


def open_predictor(model: str | Path, device: str) -> Predictor:
    """Return the predictor of a model file on a device of gpufeed.core.cells.DEVICES.

    Raises GpufeedError for a file that is not a model of ours, Skip if it has no weights or the node lacks
    the device.
    """
    return Predictor(load(model), resolve_device(device))


def predict_to_csv(model: str | Path, files: Iterable[str], out: str | Path, device: str) -> None:
    """Write a CSV with a row per file; without weights, rows have the sentence of the training.

    Raises GpufeedError for a file that is not a model of ours.
    """
    top, classes = TOP, []
    try:
        predictor = open_predictor(model, device)
        classes = predictor.saved.classes
        top = min(TOP, len(classes))
        rows = predictor.predict(files, top)
    except Skip as skip:
        sentence = str(skip)
        rows = (Prediction(found.path, (), sentence) for found in find(files))
    with whole_file(out) as file:
        write_predictions(rows, file, "csv", top, classes)


def for_job(job: Any) -> None:
    """Run rule predict. job: a gpufeed.job.Job."""
    job.take_gpus(1, job.params.device)
    files = list(job.input.files)
    if job.params.samples:
        files += samples(job.input.manifest, job.params.samples)
    predict_to_csv(job.input.model, files, job.output.predictions, job.params.device)
