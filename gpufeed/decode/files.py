"""Reading image files with no more system calls than they need."""

import os

from gpufeed.decode.base import bad_file

PIECE = 64 * 2**10  # bytes asked for at first: most small images come whole
MOST_BYTES = 2**29  # of one image: Pillow takes no more pixels than those of 8-bit RGB, uncompressed


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
