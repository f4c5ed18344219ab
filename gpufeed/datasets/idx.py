"""Read and write the idx files of MNIST and its like: four gzipped files of uint8 images and labels.

Source: the idx format of MNIST (Y. LeCun, C. Cortes). A file begins with 0, 0, the type (8: uint8) and the
number of dimensions, then each dimension as a big-endian uint32, then the values.
"""

import gzip
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from tqdm import tqdm

from gpufeed.core.config_sources import IDX_FILES
from gpufeed.core.file_writes import whole
from gpufeed.datasets.archive import reading
from gpufeed.datasets.manifest import DatasetInfo, Manifest
from gpufeed.datasets.staging import checksums, malformed, png, staging

MOST_LABELS = 256  # a label is one byte
MOST_BYTES = 2**27  # of an unpacked file: MNIST and its like have 47 MB of training images
AT_ONCE = 4096  # images whose pixels are counted at once


@dataclass(frozen=True)
class Looks:
    """Mean and standard deviation of the training set's pixels in 0..1; of gray, three times the same."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


def lay_out(
    files: dict[str, Path],
    out: Path,
    dataset: str,
    layout: str,
    classes: list[str],
    looks: Looks | None = None,
    source: dict | None = None,
    most: int = MOST_BYTES,
) -> Manifest:
    """Write the images as `out/images/<train|test>/<class>/*.png` (one channel) and their manifest.

    files: those of IDX_FILES by name. looks: by default measured from the training pixels. source: where the
    files come from, noted in the manifest beside their checksums. most: as in `read_idx`. Raises GpufeedError
    for a damaged file and for images and labels that do not match.
    """
    folders = [name.replace("/", "-").replace(" ", "_") for name in classes]
    with staging(out) as stage:
        splits = {split: read_split(files, split, len(classes), most) for split in IDX_FILES}
        total = sum(len(labels) for _, labels in splits.values())
        with tqdm(total=total, desc=f"{dataset}: images", unit=" images", disable=None) as bar:
            for split, (images, labels) in splits.items():
                for image, label in zip(images, labels.tolist(), strict=True):
                    name = f"{len(stage.rows):05d}.png"  # the sample id
                    stage.add(split, folders[label], name, label, png(image), (*image.shape, 1))
                    bar.update()
        looks = looks or measured(splits["train"][0])
        origin = {**checksums(list(files.values())), **(source or {})}
        return stage.finish(
            DatasetInfo(dataset, layout, classes, "test", looks.mean, looks.std, source=origin)
        )


def measured(images: np.ndarray) -> Looks:
    """Return the Looks of uint8 images (N, H, W), N at least 1, from a histogram of their values."""
    counts = np.zeros(256, np.int64)
    for start in range(0, len(images), AT_ONCE):
        counts += np.bincount(images[start : start + AT_ONCE].ravel(), minlength=256)
    values = np.arange(256) / 255
    mean = float((counts * values).sum() / counts.sum())
    std = float(np.sqrt((counts * (values - mean) ** 2).sum() / counts.sum()))
    return Looks((round(mean, 6),) * 3, (round(std, 6),) * 3)


def read_split(files: dict[str, Path], split: str, classes: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return uint8 images (N, H, W) and uint8 labels (N,), checked against each other."""
    image_file, label_file = (files[name] for name in IDX_FILES[split])
    images, labels = read_idx(image_file, 3, most), read_idx(label_file, 1, most)
    if len(images) != len(labels):
        raise malformed(f"{len(labels)} labels for {len(images)} images", label_file, "one label an image")
    if len(labels) and labels.max() >= classes:
        raise malformed(f"label {labels.max()}", label_file, f"labels from 0 to {classes - 1}")
    return images, labels


def read_idx(path: Path, dimensions: int, most: int = MOST_BYTES) -> np.ndarray:
    """Return the uint8 array of a gzipped idx file.

    Raises GpufeedError if type or dimensions differ, the data is cut off, or it has more than `most` bytes.
    """
    start = 4 + 4 * dimensions
    with reading(path), gzip.open(path) as file:
        header = file.read(start)
        shape = struct.unpack(f">{dimensions}I", header[4:]) if len(header) == start else ()
        # bounded: a small file can unpack to any number of bytes
        data = file.read(prod(shape) + 1) if prod(shape) <= most else b""
    magic = bytes([0, 0, 8, dimensions])
    if header[:4] != magic:
        expected = f"{magic.hex(' ')} (uint8, {dimensions} dimensions)"
        raise malformed(f"first bytes {header[:4].hex(' ')}", path, expected)
    if len(header) < start:
        raise malformed(f"a header of {len(header)} bytes", path, f"{start} bytes")
    if prod(shape) > most:
        raise malformed(f"the shape {shape}", path, f"{most:,} bytes at most")
    if len(data) != prod(shape):
        raise malformed(f"{len(data)} bytes of data", path, f"{prod(shape)} for the shape {shape}")
    return np.frombuffer(data, np.uint8).reshape(shape)


def write_idx(array: np.ndarray, path: Path) -> None:
    """Write a uint8 array as a gzipped idx file, whole or not at all, reproducibly."""
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    with whole(path, shared=True) as partial:
        partial.write_bytes(gzip.compress(header + array.tobytes(), mtime=0))
