"""Host memory: how much this process may still take, and one behaviour of malloc for every measurement.

A batch system gives a job a part of a node's memory by a cgroup. Whoever takes more is killed, however much
the machine has left.

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
from collections.abc import Iterator
from pathlib import Path

import psutil

# (limit, use, prefix of the counters of the whole tree in memory.stat) of cgroups of version 2 and 1
VERSIONS = (
    ("memory.max", "memory.current", ""),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
BLOCK_BYTES = 2**30  # blocks up to this size are kept and used again


def free_host_bytes() -> int:
    """Bytes of host memory that this process can take without swapping or being killed."""
    free, room = psutil.virtual_memory().available, cgroup_room()
    return free if room is None else min(free, room)


def cgroup_room(proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes up to the nearest memory limit, from this process's cgroup up to the root; None without a limit.

    The page cache of files counts as free, as it does in psutil's `available`: it makes room when it must.
    Source: Linux, cgroup-v2.rst and cgroup-v1/memory.rst.
    """
    rooms = [room_in(folder) for folder in cgroup_folders("memory", proc, root)]
    return min((room for room in rooms if room is not None), default=None)


def cgroup_folders(controller: str, proc: Path, root: Path) -> Iterator[Path]:
    """Yield the folders of cgroups that may limit this process, nearest first. controller: memory or cpu."""
    try:
        lines = proc.read_text().splitlines()
    except OSError:
        return  # no cgroups outside Linux
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        base = root / controller if controllers else root
        folder = base / path.lstrip("/")
        # inside a container the path may name folders that are not mounted; the parents then speak
        yield from (one for one in (folder, *folder.parents) if one == base or base in one.parents)


def room_in(folder: Path) -> int | None:
    """Bytes that one cgroup leaves; None if it sets no limit."""
    for limit, use, prefix in VERSIONS:
        try:
            most = (folder / limit).read_text().strip()
            if most == "max":
                return None
            taken = int((folder / use).read_text()) - reclaimable(folder, prefix)
            return max(0, int(most) - taken)
        except (OSError, ValueError):
            continue
    return None


def reclaimable(folder: Path, prefix: str) -> int:
    """Bytes of a cgroup's use that are the page cache of files; 0 where it does not say."""
    try:
        counters = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return sum(int(counters[f"{prefix}{kind}_file"]) for kind in ("active", "inactive"))
    except (OSError, ValueError, KeyError):
        return 0


def keep_freed_blocks() -> bool:
    """Makes malloc keep what is freed, here and in forked processes; False where it is not glibc."""
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(M_MMAP_THRESHOLD, BLOCK_BYTES) and libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1))
