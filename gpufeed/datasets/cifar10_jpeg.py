"""CIFAR-10 from a JPEG copy in one file, `cifar10-jpeg.npz`; the JPEG bytes are written unchanged.

The file holds `jpeg` (uint8, all files end to end), `offset` (int64 (N + 1,), where each begins),
`label` (uint8 (N,)) and `split` (uint8 (N,): 0 train, 1 test). JPEG is lossy, so accuracies compare only with
others on the same copy.
"""

import io
from pathlib import Path

import numpy as np
from tqdm import tqdm

from gpufeed.core.config_sources import checked_options
from gpufeed.core.errors import GpufeedError
from gpufeed.datasets.archive import members, reading
from gpufeed.datasets.cifar10 import MEAN, STD
from gpufeed.datasets.manifest import DatasetInfo, Manifest
from gpufeed.datasets.staging import checksums, header_shape, malformed, only_archive, staging

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
SPLITS = ("train", "test")
MOST_BYTES = 2**28  # of an array: 60,000 files of 32 x 32 pixels, or where each begins
DTYPES = {"jpeg": np.uint8, "offset": np.int64, "label": np.uint8, "split": np.uint8}


def reorganise(archives: list[Path], out: Path, dataset: str, options: dict) -> Manifest:
    """Write the images as `out/images/<train|test>/<class>/*.jpg` and their manifest.

    Raises GpufeedError for a file that is damaged or whose arrays do not fit together.
    """
    checked_options("cifar10_jpeg", options)
    archive = only_archive(archives, "cifar10_jpeg")
    with staging(out) as stage:
        arrays = _read(archive)
        jpeg, offset = memoryview(arrays["jpeg"]), arrays["offset"].tolist()
        samples = zip(arrays["split"].tolist(), arrays["label"].tolist(), strict=True)
        bar = tqdm(samples, total=len(offset) - 1, desc=f"{dataset}: images", unit=" images", disable=None)
        for index, (split, label) in enumerate(bar):
            data = bytes(jpeg[offset[index] : offset[index + 1]])
            shape = header_shape(data)
            stage.add(SPLITS[split], CLASSES[label], f"{index:05d}.jpg", label, data, shape)
        info = DatasetInfo(dataset, "cifar10_jpeg", CLASSES, "test", MEAN, STD, source=checksums([archive]))
        return stage.finish(info)


def _read(archive: Path) -> dict[str, np.ndarray]:
    """Return the four arrays, checked against one another."""
    arrays = {}
    for member in members(archive, MOST_BYTES):
        if (name := member.name.removesuffix(".npy")) in DTYPES:
            arrays[name] = _array(member.read(), archive)
    for name, dtype in DTYPES.items():
        if name not in arrays or arrays[name].dtype != dtype or arrays[name].ndim != 1:
            raise _misfit(archive, f"no array {name!r} of {np.dtype(dtype)} with one dimension")
    jpeg, offset, label, split = (arrays[name] for name in DTYPES)
    if not len(offset) == len(label) + 1 == len(split) + 1:
        raise _misfit(archive, f"{len(offset)} offsets, {len(label)} labels and {len(split)} splits")
    if offset[0] != 0 or offset[-1] != len(jpeg) or (np.diff(offset) <= 0).any():
        raise _misfit(archive, f"offsets that do not cut {len(jpeg)} bytes into files")
    if (label >= len(CLASSES)).any() or (split >= len(SPLITS)).any():
        raise _misfit(archive, f"labels up to {label.max()} and splits up to {split.max()}")
    return arrays


def _array(data: bytes, archive: Path) -> np.ndarray:
    with reading(archive):
        try:
            return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
        except MemoryError as error:  # the header asks for more than fits
            raise EOFError(f"an array of which only {len(data)} bytes are there") from error


def _misfit(archive: Path, found: str) -> GpufeedError:
    arrays = "arrays jpeg (uint8), offset (int64, images + 1), label (uint8, 0 to 9), split (uint8, 0 or 1)"
    return malformed(found, archive, arrays)
