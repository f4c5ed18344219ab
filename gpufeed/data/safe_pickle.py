"""Reading pickles of arrays, numbers, text and bytes without executing anything that they name."""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gpufeed.errors import GpufeedError

# taken from arrays themselves: numpy moved these functions from numpy.core to numpy._core
_RECONSTRUCT = np.empty(0).__reduce__()[0]
_FROMBUFFER = np.empty(0).__reduce_ex__(5)[0]


def _latin1(text: str, encoding: str) -> bytes:
    """Python 3 writes bytes in pickles of protocol 2 as `_codecs.encode(text, 'latin1')`."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"encoding {encoding!r} in bytes")
    return text.encode("latin1")


ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy.core.numeric", "_frombuffer"): _FROMBUFFER,
    ("numpy._core.numeric", "_frombuffer"): _FROMBUFFER,
    ("_codecs", "encode"): _latin1,
    ("__builtin__", "bytes"): bytes,
    ("builtins", "bytes"): bytes,
}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return ALLOWED[module, name]


def load_arrays(data: bytes, name: str, archive: Path) -> Any:
    """The content of a pickle made of containers, numbers, text, bytes and numpy arrays.

    name, archive: where it comes from, for the message. Strings of Python 2 come as bytes.
    Raises GpufeedError if the pickle is damaged or names anything else, which is not executed.
    """
    try:
        return _ArraysOnly(io.BytesIO(data), encoding="bytes").load()
    except Exception as error:  # a damaged pickle raises nearly anything
        raise GpufeedError(
            f"{name} in {archive} cannot be read safely ({error})",
            "a pickle of arrays, lists, numbers and text only",
            "get the archive from its publisher and check its sha256; nothing in it was executed",
        ) from error
