"""Fashion-MNIST from its four idx.gz files to grayscale PNG files.

Source: H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST: a Novel Image Dataset, 2017; the idx format
is the one of MNIST (Y. LeCun, C. Cortes).
"""

import gzip
import struct
from math import prod
from pathlib import Path

import numpy as np
from tqdm import tqdm

from gpufeed.data.archive import reading
from gpufeed.data.manifest import DatasetInfo, Manifest
from gpufeed.data.staging import checksums, no_options, png, staging
from gpufeed.errors import GpufeedError

CLASSES = [
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
]
FOLDERS = [name.replace("/", "-").replace(" ", "_") for name in CLASSES]
FILES = {
    "train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
}
# of the training set's pixels in 0..1; the same three times, as decoders expand grayscale to RGB
MEAN, STD = (0.2860,) * 3, (0.3530,) * 3


def reorganise(archives: list[Path], out: Path, dataset: str, options: dict) -> Manifest:
    """Writes the images as `out/images/<train|test>/<class>/*.png` (one channel) and their manifest.

    Raises GpufeedError for a missing or damaged file and for images and labels that do not match.
    """
    no_options(options, "fashion_mnist")
    files = _by_name(archives)
    with staging(out) as stage:
        splits = {split: _read_split(files, split) for split in FILES}
        total = sum(len(labels) for _, labels in splits.values())
        with tqdm(total=total, desc=f"{dataset}: images", unit=" images", disable=None) as bar:
            for split, (images, labels) in splits.items():
                for image, label in zip(images, labels.tolist(), strict=True):
                    name = f"{len(stage.rows):05d}.png"  # the sample id
                    stage.add(split, FOLDERS[label], name, label, png(image), (*image.shape, 1))
                    bar.update()
        info = DatasetInfo(
            dataset, "fashion_mnist", CLASSES, "test", MEAN, STD, source=checksums(list(files.values()))
        )
        return stage.finish(info)


def _by_name(archives: list[Path]) -> dict[str, Path]:
    """The four files by name."""
    files = {Path(path).name: Path(path) for path in archives}
    wanted = [name for pair in FILES.values() for name in pair]
    if sorted(files) != sorted(wanted):
        raise GpufeedError(
            f"the files {', '.join(sorted(files)) or '(none)'} for layout fashion_mnist",
            ", ".join(wanted),
            "list these four files in the dataset's row under `sources`",
        )
    return files


def _read_split(files: dict[str, Path], split: str) -> tuple[np.ndarray, np.ndarray]:
    """uint8 images (N, H, W) and uint8 labels (N,), checked against each other."""
    image_file, label_file = (files[name] for name in FILES[split])
    images, labels = read_idx(image_file, 3), read_idx(label_file, 1)
    if len(images) != len(labels):
        raise _malformed(label_file, f"{len(labels)} labels for {len(images)} images", "one label an image")
    if len(labels) and labels.max() >= len(CLASSES):
        raise _malformed(label_file, f"label {labels.max()}", f"labels from 0 to {len(CLASSES) - 1}")
    return images, labels


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """The uint8 array of a gzipped idx file.

    The file begins with 0, 0, the type (8: uint8) and the number of dimensions, then each dimension
    as a big-endian uint32. Raises GpufeedError if anything of it differs or the data is cut off.
    """
    with reading(path):
        data = gzip.decompress(path.read_bytes())
    magic = bytes([0, 0, 8, dimensions])
    if data[:4] != magic:
        raise _malformed(
            path, f"first bytes {data[:4].hex(' ')}", f"{magic.hex(' ')} (uint8, {dimensions} dimensions)"
        )
    start = 4 + 4 * dimensions
    if len(data) < start:
        raise _malformed(path, f"a header of {len(data)} bytes", f"{start} bytes")
    shape = struct.unpack(f">{dimensions}I", data[4:start])
    if len(data) - start != prod(shape):
        raise _malformed(path, f"{len(data) - start} bytes of data", f"{prod(shape)} for the shape {shape}")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _malformed(path: Path, found: str, expected: str) -> GpufeedError:
    return GpufeedError(f"{found} in {path}", expected, "fetch the file anew and check its sha256")
