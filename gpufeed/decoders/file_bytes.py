"""Reading image files with no more system calls than they need."""

import contextlib
import os

from gpufeed.decoders.base import bad_file

PIECE = 64 * 2**10  # bytes asked for at first: most small images come whole
MOST_BYTES = 2**29  # of one image: Pillow takes no more pixels than those of 8-bit RGB, uncompressed
LOOKED_AT = 256  # files whose sizes stand for all


def read_file(path: str) -> bytes:
    """A whole file by open, read and close: Path.read_bytes makes a file object and asks for the size too.

    Raises GpufeedError if it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(descriptor, PIECE)
            if len(data) < PIECE:  # a regular file gives less than was asked for at its end only
                return data
            pieces = [data]
            while data := os.read(descriptor, os.fstat(descriptor).st_size):
                pieces.append(data)
            return b"".join(pieces)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise bad_file(path, error.strerror or str(error)) from error


def mean_size(paths: list[str]) -> float:
    """Bytes of a file in the mean, of at most LOOKED_AT of them all along the list; 0 if none can be read."""
    sizes = []
    for path in paths[:: max(1, -(-len(paths) // LOOKED_AT))]:
        with contextlib.suppress(OSError):  # whoever reads it will name it
            sizes.append(os.path.getsize(path))
    return sum(sizes) / len(sizes) if sizes else 0.0
