"""Reading pickles of arrays, numbers, text and bytes without executing anything that they name."""

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np

from gpufeed.core.errors import GpufeedError

_ARRAY = "ndarray"  # stands for the class, which could make an array of any size
_FROMBUFFER = np.empty(0).__reduce_ex__(5)[0]  # from an array: numpy moved it from numpy.core to numpy._core


def _reconstruct(kind: str, shape: tuple[int, ...], code: bytes) -> np.ndarray:
    """An array without values, as they all begin; shape, type and values come next."""
    if kind is not _ARRAY or shape != (0,):
        raise pickle.UnpicklingError(f"an array of shape {shape} without values")
    return np.empty(0, np.uint8)


def _no_bytes() -> bytes:
    """What Python 3 writes for empty bytes in pickles of protocol 2; `bytes` would take a number, too."""
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
        self.left = len(data)  # bytes that may still be made of text, which the pickle holds itself

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return self.latin1
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return ALLOWED[module, name]

    def latin1(self, text: str, encoding: str) -> bytes:
        """Python 3 writes bytes in pickles of protocol 2 as `_codecs.encode(text, 'latin1')`."""
        if encoding != "latin1":
            raise pickle.UnpicklingError(f"encoding {encoding!r} in bytes")
        self.left -= len(text)
        if self.left < 0:
            raise pickle.UnpicklingError("it makes more bytes than it has")
        return text.encode("latin1")


def _check_memo(data: bytes) -> None:
    """Raises UnpicklingError for a place in the memo that is beyond all: a list of that length is made."""
    for code, argument, _ in pickletools.genops(data):
        if code.name in ("PUT", "BINPUT", "LONG_BINPUT") and argument > len(data):
            raise pickle.UnpicklingError(f"place {argument} in its memo")


def load_arrays(data: bytes, name: str, archive: Path) -> Any:
    """The content of a pickle made of containers, numbers, text, bytes and numpy arrays.

    name, archive: where it comes from, for the message. Strings of Python 2 come as bytes.
    What it makes takes no more memory than its own bytes let expect. Raises GpufeedError if the pickle is
    damaged, claims more, or names anything else, which is not executed.
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
