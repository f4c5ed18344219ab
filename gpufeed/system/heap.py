"""One behaviour of the host's allocator for every measurement.

glibc returns large blocks to the kernel when they are freed, until a program has freed a larger one,
which raises that threshold. So a loader that once frees a large buffer would spare every later step the
page faults of its tensors: measured on two cores, 9.1 against 14.5 ms a step for the same training. A process
that decodes JPEGs of 1,024 pixels faults 770 to 970 pages an image without this (medians of 15 passes on two
busy cores: Pillow 65 to 75 against 91 to 134 images/s, simplejpeg 103 to 106 against 170), none with it.
Source: mallopt(3), M_MMAP_THRESHOLD and M_TRIM_THRESHOLD.

Not in a process, or a fork of it, whose malloc has failed once: glibc then moves that thread to an arena
whose heaps end at 64 MiB and are given back when they are empty. A cell that ran out of the host's memory is
therefore no timing of a steady loop. Source: glibc, malloc/arena.c, arena_get_retry.
"""

import ctypes
import platform

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
BLOCK_BYTES = 2**30  # blocks up to this size are kept and used again


def keep_freed_blocks() -> bool:
    """Makes malloc keep what is freed, here and in forked processes; False where it is not glibc."""
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(M_MMAP_THRESHOLD, BLOCK_BYTES) and libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1))
