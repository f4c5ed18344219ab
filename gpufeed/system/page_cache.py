"""The page cache of a few files, without root: read them in, evict them, and see what is cached.

Source: posix_fadvise(2), POSIX_FADV_DONTNEED; mincore(2).
"""

import contextlib
import ctypes
import mmap
import os
import time
from collections.abc import Collection, Iterable

import numpy as np

PIECE = 2**20  # bytes of one read
READ_IN_BYTES = 8 * 2**30  # of all files: reading more would take too long
TRIES, PAUSE_S = 4, 0.1
COLD = 0.9  # share of the pages that must be evicted for a cold pass


class Refused(Exception):
    """The files could not be evicted; the message says why."""


def read_in(paths: Iterable[str]) -> None:
    """Read every file once, so that the page cache has all of them if they fit."""
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.read(PIECE):
                pass


def read_in_some(paths: Collection[str]) -> None:
    """Read the files in, unless they are too large for a measurement of seconds."""
    if sum(os.path.getsize(path) for path in paths) <= READ_IN_BYTES:
        read_in(paths)


def evict(paths: Iterable[str]) -> None:
    """Ask the kernel to drop the files' pages; dirty pages are written first, or they would stay."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):  # not supported: nothing to write
                os.fsync(descriptor)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def make_cold(paths: list[str]) -> float:
    """Evict the files and return the share of evicted pages; raise Refused if it is too small.

    Pages that another core has just used stay for a moment, so this tries a few times.
    """
    share = None
    for _ in range(TRIES):
        evict(paths)
        share = evicted_share(paths)
        if share is None or share >= COLD:
            break
        time.sleep(PAUSE_S)
    if share is None:
        raise Refused(
            "This system does not say which pages of a file are in memory, so cold was not measured."
        )
    if share < COLD:
        raise Refused(
            f"The kernel kept {100 * (1 - share):.0f} % of the files' pages in memory although it was asked "
            "to drop them (as on tmpfs), so cold was not measured."
        )
    return share


def evicted_share(paths: Iterable[str]) -> float | None:
    """Return the share of the files' pages that are not in memory, 0..1; None if unknown."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "mincore"):
        return None
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    pages = present = 0
    for path in paths:
        found = _resident(libc, path)
        if found is None:
            return None
        pages += len(found)
        present += sum(byte & 1 for byte in found)
    return 1 - present / pages if pages else None


def _resident(libc: ctypes.CDLL, path: str) -> bytes | None:
    """Return a byte for each page of the file, with its lowest bit set if in memory; None if unknown."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        if not size:
            return b""
        # read-only: a private writable mapping would count as memory, and the file may be larger than that
        mapped = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)
    view = np.frombuffer(mapped, np.uint8)  # ctypes cannot take the address of read-only memory
    try:
        vector = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
        failed = libc.mincore(view.ctypes.data, size, vector)
        return None if failed else vector.raw[: -(-size // mmap.PAGESIZE)]
    finally:
        del view
        mapped.close()
