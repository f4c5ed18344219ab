"""Tiny datasets for tests, written as the data room writes real ones: image files and a manifest."""

import io
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image

from gpufeed.cache import build
from gpufeed.data.manifest import DatasetInfo, Manifest
from gpufeed.loaders.base import LoadRequest

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def pixels(sample_id: int, size: int) -> np.ndarray:
    """The image of a sample, uint8 (size, size, 3); its first two channels hold its id everywhere."""
    image = np.random.default_rng(sample_id).integers(0, 256, (size, size, 3), dtype=np.uint8)
    image[..., 0], image[..., 1] = sample_id % 256, sample_id // 256
    return image


def encode(image: np.ndarray, format: str = "PNG", mode: str | None = None) -> bytes:
    """An encoded file. mode: Pillow's, such as "P" or "CMYK"; None leaves the image as it is."""
    buffer = io.BytesIO()
    picture = Image.fromarray(image)
    (picture.convert(mode) if mode else picture).save(buffer, format)
    return buffer.getvalue()


def write_dataset(root: Path, train: int = 23, test: int = 6, size: int = 8, classes: int = 5) -> Manifest:
    """Lossless images whose id stands in their pixels, test samples spread among the training samples."""
    count = train + test
    splits = ["train"] * count
    for place in np.linspace(1, count - 1, test).astype(int):
        splits[place] = "test"
    rows = []
    for sample_id, split in enumerate(splits):
        path = root / "images" / split / f"{sample_id}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(pixels(sample_id, size)))
        rows.append((str(path.relative_to(root)), sample_id * 7 % classes, split, size, size, 3))
    table = pd.DataFrame(rows, columns=["path", "label", "split", "height", "width", "channels"])
    names = [f"class {label}" for label in range(classes)]
    manifest = Manifest(root, DatasetInfo("tiny", "synthetic", names, "test", MEAN, STD), table)
    manifest.write()
    return manifest


def write_cache(manifest: Manifest) -> Path:
    """The dataset's Pillow cache."""
    path = manifest.root / "cache" / "pillow.npy"
    build(manifest, "pillow", path)
    return path


def request(manifest: Manifest, cache: Path | None, **changes) -> LoadRequest:
    """A request for the training split on the CPU in batches of 5, with `changes`."""
    usual = {"split": "train", "batch_size": 5, "device": torch.device("cpu"), "seed": 3, "cache": cache}
    return LoadRequest(manifest=manifest, **{**usual, **changes})
