"""CIFAR-10 from `cifar-10-python.tar.gz`: pickled batches to lossless PNG files.

The pickles are read without calling any function that they name, except a short list of harmless ones.
Source: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
"""

import io
import pickle
import pickletools
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from tqdm import tqdm

from gpufeed.core.config_sources import checked_options
from gpufeed.core.errors import GpufeedError
from gpufeed.datasets.archive import members
from gpufeed.datasets.manifest import DatasetInfo, Manifest
from gpufeed.datasets.staging import (
    check_class_names,
    checksums,
    malformed,
    only_archive,
    png,
    staging,
)

_ARRAY = "ndarray"  # in place of the class, which could allocate an array of any size
_FROMBUFFER = np.empty(0).__reduce_ex__(5)[0]  # its module differs between numpy 1 and 2


def _reconstruct(kind: str, shape: tuple[int, ...], code: bytes) -> np.ndarray:
    """Return an empty array, as every pickled array begins; its state brings shape, type and values."""
    if kind is not _ARRAY or shape != (0,):
        raise pickle.UnpicklingError(f"an array of shape {shape} without values")
    return np.empty(0, np.uint8)


def _no_bytes() -> bytes:
    """Return b"", as protocol 2 pickles it; the real `bytes` would also take a number and allocate."""
    return b""


ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _ARRAY,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy.core.numeric", "_frombuffer"): _FROMBUFFER,
    ("numpy._core.numeric", "_frombuffer"): _FROMBUFFER,
    ("__builtin__", "bytes"): _no_bytes,
    ("builtins", "bytes"): _no_bytes,
}


class _ArraysOnly(pickle.Unpickler):
    def __init__(self, data: bytes):
        super().__init__(io.BytesIO(data), encoding="bytes")
        self.left = len(data)  # bytes that `latin1` may still return: no more than the pickle itself has

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return self.latin1
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return ALLOWED[module, name]

    def latin1(self, text: str, encoding: str) -> bytes:
        """Return the bytes that protocol 2 pickles as `_codecs.encode(text, 'latin1')`."""
        if encoding != "latin1":
            raise pickle.UnpicklingError(f"encoding {encoding!r} in bytes")
        self.left -= len(text)
        if self.left < 0:
            raise pickle.UnpicklingError("it expands to more bytes than it has")
        return text.encode("latin1")


def _check_memo(data: bytes) -> None:
    """Raise UnpicklingError for a huge memo index: the unpickler would allocate a list of that length."""
    for code, argument, _ in pickletools.genops(data):
        if code.name in ("PUT", "BINPUT", "LONG_BINPUT") and argument > len(data):
            raise pickle.UnpicklingError(f"memo index {argument}")


def load_arrays(data: bytes, name: str, archive: Path) -> Any:
    """Return the content of a pickle made of containers, numbers, text, bytes and numpy arrays.

    name, archive: where it comes from, for messages. Strings of Python 2 are returned as bytes. Memory use is
    bounded by the pickle's size. Raises GpufeedError if the pickle is damaged, would allocate more, or names
    anything else; that is not executed.
    """
    try:
        _check_memo(data)
        return _ArraysOnly(data).load()
    except Exception as error:  # a damaged pickle raises nearly anything
        raise GpufeedError(
            f"{name} in {archive} cannot be read safely ({error})",
            "a pickle of arrays, lists, numbers and text only",
            "get the archive from its publisher and check its sha256; nothing in it was executed",
        ) from error


# of the training set's pixels, RGB, in 0..1
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)

SPLITS = {**{f"data_batch_{number}": "train" for number in range(1, 6)}, "test_batch": "test"}
META = "batches.meta"
MOST_BYTES = 2**27  # of a file: 10,000 images of 3,072 bytes, with room for other pickle protocols


def reorganise(archives: list[Path], out: Path, dataset: str, options: dict) -> Manifest:
    """Write the images as `out/images/<train|test>/<class>/*.png` and their manifest.

    Raises GpufeedError for an archive that is damaged, incomplete or names code to execute.
    """
    checked_options("cifar10", options)
    archive = only_archive(archives, "cifar10")
    with staging(out) as stage:
        classes, batches = read_images(archive)
        total = sum(len(labels) for _, labels in batches.values())
        with tqdm(total=total, desc=f"{dataset}: images", unit=" images", disable=None) as bar:
            for name, (images, labels) in batches.items():
                for image, label in zip(images, labels.tolist(), strict=True):
                    file = f"{len(stage.rows):05d}.png"  # the sample id
                    stage.add(SPLITS[name], classes[label], file, label, png(image), (32, 32, 3))
                    bar.update()
        info = DatasetInfo(dataset, "cifar10", classes, "test", MEAN, STD, source=checksums([archive]))
        return stage.finish(info)


def read_images(archive: Path) -> tuple[list[str], dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Read the class names, and for each name in SPLITS uint8 images (N, 32, 32, 3) and int64 labels (N,).

    Raises GpufeedError as `reorganise` does.
    """
    contents = _read_batches(archive)
    classes = _class_names(contents[META], archive)
    return classes, {name: _images_and_labels(contents[name], name, len(classes), archive) for name in SPLITS}


def _read_batches(archive: Path) -> dict[str, dict]:
    """Return the unpickled batches and class names by file name, keys as text."""
    wanted = {*SPLITS, META}
    contents = {}
    for member in members(archive, MOST_BYTES):
        name = PurePosixPath(member.name).name
        if name in wanted:
            content = load_arrays(member.read(), name, archive)
            if not isinstance(content, dict):
                raise malformed(f"a {type(content).__name__}", f"{name} of {archive}", "a dict")
            contents[name] = {_text(key): value for key, value in content.items()}
    if missing := sorted(wanted - set(contents)):
        raise GpufeedError(
            f"{archive} without {', '.join(missing)}",
            f"the files {', '.join(sorted(wanted))}",
            "download the archive again: this one is cut off or a different one",
        )
    return contents


def _class_names(meta: dict, archive: Path) -> list[str]:
    names = meta.get("label_names")
    if not isinstance(names, list):
        raise malformed("no list `label_names`", f"{META} of {archive}", "the names of the classes")
    classes = [_text(name) for name in names]
    check_class_names(classes, f"{META} in {archive}")
    return classes


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _images_and_labels(batch: dict, name: str, classes: int, archive: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return uint8 images (N, 32, 32, 3) and int64 labels (N,) of one batch, checked."""
    data, labels, where = batch.get("data"), batch.get("labels"), f"{name} of {archive}"
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (3072,):
        found = f"{data.dtype} {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise malformed(f"data of {found}", where, "uint8 (N, 3072)")
    if not isinstance(labels, list) or len(labels) != len(data):
        found = f"{len(labels)} labels" if isinstance(labels, list) else "no list of labels"
        raise malformed(f"{found} for {len(data)} images", where, "one label an image")
    if bad := [label for label in labels if type(label) is not int or not 0 <= label < classes]:
        raise malformed(f"label {bad[0]!r}", where, f"a number from 0 to {classes - 1}")
    # the file holds planes: (N, 3, 32, 32)
    return data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), np.array(labels, dtype=np.int64)
