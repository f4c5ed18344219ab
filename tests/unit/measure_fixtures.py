"""A toy dataset whose images are computed from their ids, and loaders for it, with and without faults."""

import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn

from gpufeed import registry
from gpufeed.data.manifest import DatasetInfo, Manifest
from gpufeed.errors import Skip
from gpufeed.experiment import Cell
from gpufeed.loaders.base import Batch, Loader, LoadRequest
from gpufeed.models.simple_cnn import SimpleCNN
from gpufeed.trainers.base import TrainJob
from gpufeed.trainers.plain import PlainTrainer

SIDE, CLASSES = 8, 3
CPU = torch.device("cpu")
OPTIONS = {
    "optimiser": "adam",
    "learning_rate": 1e-2,
    "momentum": 0.9,
    "weight_decay": 0.0,
    "schedule": "constant",
    "warmup_share": 0.3,
    "label_smoothing": 0.0,
}


def toy_manifest(root: Path, train: int = 30, held_out: int = 12) -> Manifest:
    """Labels go round the classes; there are no image files, since ToyLoader needs none."""
    n = train + held_out
    table = pd.DataFrame(
        {
            "path": [f"{i}.png" for i in range(n)],
            "label": np.arange(n) % CLASSES,
            "split": ["train"] * train + ["test"] * held_out,
            "height": SIDE,
            "width": SIDE,
            "channels": 3,
        }
    )
    info = DatasetInfo("toy", "toy", ["red", "green", "blue"], "test", (0.5,) * 3, (0.25,) * 3)
    return Manifest(root, info, table)


def toy_images(ids: np.ndarray) -> torch.Tensor:
    """uint8 (N, SIDE, SIDE, 3): noise that depends on the id, with the channel of the class raised."""
    images = np.stack([np.random.default_rng(i).integers(0, 156, (SIDE, SIDE, 3)) for i in ids])
    images[np.arange(len(ids)), :, :, np.asarray(ids) % CLASSES] += 100
    return torch.from_numpy(images.astype(np.uint8))


class ToyLoader(Loader):
    """Makes each batch on the spot."""

    delay_s = 0.0

    def batches(self, order):
        labels, size = self.request.manifest.labels(), self.request.batch_size
        for start in range(0, len(order), size):
            began = time.perf_counter()
            ids = order[start : start + size]
            images = toy_images(ids)
            if self.request.sample_transform is not None:
                transform = self.request.sample_transform
                images = torch.stack(
                    [transform(x, int(i), self.epoch) for x, i in zip(images, ids, strict=True)]
                )
            time.sleep(self.delay_s)
            load_ms = (time.perf_counter() - began) * 1e3
            yield Batch(images, torch.from_numpy(labels[ids]), torch.from_numpy(ids), load_ms)


class SlowLoader(ToyLoader):
    delay_s = 0.03


class LossyLoader(ToyLoader):
    """Loses the first sample of the second batch."""

    def batches(self, order):
        size = self.request.batch_size
        for number, batch in enumerate(super().batches(order)):
            if number == 1 and len(batch.ids) == size:
                batch = Batch(batch.images[1:], batch.labels[1:], batch.ids[1:], batch.load_ms)
            yield batch


class MissingLoader(ToyLoader):
    def open(self):
        raise Skip("The toy needs a machine that this node lacks.")


class BreakingLoader(ToyLoader):
    def batches(self, order):
        yield next(super().batches(order))
        raise OSError("the disk went away\nand more lines")


class FullLoader(ToyLoader):
    def open(self):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.\nMore advice")


class Normalise:
    """The augment `none` of the toys; records the epochs it was called with."""

    where = "device"

    def __init__(self, mean, std, seed, options):
        self.mean, self.std, self.options = torch.tensor(mean), torch.tensor(std), options

    def __call__(self, images, ids, epoch):
        scaled = (images.float() / 255 - self.mean) / self.std  # (N, H, W, 3)
        return scaled.permute(0, 3, 1, 2)


class SampleNormalise(Normalise):
    """The same for one sample, in the loader."""

    where = "sample"

    def __call__(self, image, sample_id, epoch):
        return super().__call__(image[None], None, epoch)[0]


class SlowModel(SimpleCNN):
    def forward(self, images):
        time.sleep(0.03)
        return super().forward(images)


class NaNModel(SimpleCNN):
    def forward(self, images):
        return super().forward(images) * torch.tensor(float("nan"))


LOADERS = ("ToyLoader", "SlowLoader", "LossyLoader", "MissingLoader", "BreakingLoader", "FullLoader")


def register(monkeypatch) -> None:
    """Puts the toys into the registry for one test."""
    for name in LOADERS:
        monkeypatch.setitem(registry.LOADERS, name, registry.LoaderEntry(f"measure_fixtures:{name}"))
    ceiling = registry.LoaderEntry("measure_fixtures:ToyLoader", ceiling=True)
    monkeypatch.setitem(registry.LOADERS, "ceiling", ceiling)
    monkeypatch.setitem(registry.LOADERS, "gone", registry.LoaderEntry("a_package_that_is_not_there:X"))
    monkeypatch.setitem(registry.AUGMENTS, "none", registry.Entry("measure_fixtures:Normalise"))
    monkeypatch.setitem(registry.AUGMENTS, "sample", registry.Entry("measure_fixtures:SampleNormalise"))
    for name in ("SlowModel", "NaNModel"):
        monkeypatch.setitem(registry.MODELS, name, registry.Entry(f"measure_fixtures:{name}"))


def toy_cell(**axes) -> dict:
    """A cell on the toy, small enough for a test, as a job gets it."""
    small = {"batch_size": 8, "epochs": 2, "device": "cpu", "precision": "fp32"}
    hyper = {"model": {"channels": [8, 16]}, "trainer": OPTIONS, "augment": {}}
    defaults = {"experiment": "toys", "dataset": "toy", "loader": "ToyLoader", "hyper": hyper}
    return Cell(**{**defaults, **small, **axes}).asdict()


def toy_trainer(root: Path, model: nn.Module | None = None, loader=ToyLoader, options=None, **job):
    """A prepared plain trainer on the toy; fields of TrainJob by keyword."""
    manifest = toy_manifest(root)
    torch.manual_seed(0)
    request = LoadRequest(manifest, "train", batch_size=8, device=CPU)
    parts = {
        "model": model or SimpleCNN(CLASSES, channels=(8, 16)),
        "loader": loader(request),
        "augment": Normalise(manifest.info.mean, manifest.info.std, 0, {}),
        "device": CPU,
        "precision": "fp32",
        "options": {**OPTIONS, **(options or {})},
    }
    trainer = PlainTrainer(TrainJob(**{**parts, **job}))
    trainer.prepare(torch.zeros((8, SIDE, SIDE, 3), dtype=torch.uint8))
    return trainer
