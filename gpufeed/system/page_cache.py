"""The page cache of a few files, without root: read them in, ask for their eviction, look what is there.

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
READ_IN_BYTES = 8 * 2**30  # of all files together, which take seconds
TRIES, PAUSE_S = 4, 0.1
COLD = 0.9  # share of the pages that must be out for a pass to count as cold


class Refused(Exception):
    """The files could not be evicted; the message says so."""


def read_in(paths: Iterable[str]) -> None:
    """Reads every file once, so that all are in the page cache if they fit."""
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.read(PIECE):
                pass


def read_in_some(paths: Collection[str]) -> None:
    """As read_in, unless the files are too large for a measurement of seconds."""
    if sum(os.path.getsize(path) for path in paths) <= READ_IN_BYTES:
        read_in(paths)


def evict(paths: Iterable[str]) -> None:
    """Asks the kernel to drop the files' pages; those not yet on disk are written first, else they stay."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):  # a file system that cannot has nothing to write
                os.fsync(descriptor)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def make_cold(paths: list[str]) -> float:
    """Evicts the files and returns the share of pages that are out; raises Refused if too few are.

    Pages that another core has just read or written stay until it lets go of them: it asks a few times.
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
            "This system does not tell which pages of a file are in memory, so cold was not measured."
        )
    if share < COLD:
        raise Refused(
            f"The kernel kept {100 * (1 - share):.0f} % of the files' pages in memory although it was asked "
            "to drop them (as on tmpfs), so cold was not measured."
        )
    return share


def evicted_share(paths: Iterable[str]) -> float | None:
    """Share of the files' pages that are not in memory, 0..1; None where the system does not tell."""
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
    """One byte a page of the file, its lowest bit set if the page is in memory; None if that is unknown."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        if not size:
            return b""
        # read-only: a private writable mapping counts as memory, of which a file may be larger
        mapped = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)
    view = np.frombuffer(mapped, np.uint8)  # ctypes gives no address of read-only memory
    try:
        vector = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
        failed = libc.mincore(view.ctypes.data, size, vector)
        return None if failed else vector.raw[: -(-size // mmap.PAGESIZE)]
    finally:
        del view
        mapped.close()
