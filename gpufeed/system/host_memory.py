"""Host memory: how much this process may still take, and the same malloc behaviour in every measurement.

A batch system limits a job's memory by a cgroup. A job that takes more is killed, however much memory the
machine has left.

glibc returns freed large blocks to the kernel, until a program has freed a larger one, which raises that
threshold. So a loader that frees one large buffer would spare all later steps the page faults of their
tensors. On two cores the same training took 9.1 instead of 14.5 ms a step. A process that decodes JPEGs of
1,024 pixels has 770 to 970 page faults an image without this, and none with it. Pillow then decodes
91-134 images/s instead of 65-75, simplejpeg 170 instead of 103-106 (medians of 15 passes, two busy cores).
Source: mallopt(3), M_MMAP_THRESHOLD and M_TRIM_THRESHOLD.

This does not hold in a process whose malloc has failed once, or in its forks. glibc then moves that thread to
an arena with heaps of at most 64 MiB, which are returned when they are empty. So a cell that ran out of host
memory does not time a steady loop. Source: glibc, malloc/arena.c, arena_get_retry.
"""

import ctypes
import platform
from collections.abc import Iterator
from pathlib import Path

import psutil

# (limit, use, prefix of the tree's counters in memory.stat) of cgroup versions 2 and 1
VERSIONS = (
    ("memory.max", "memory.current", ""),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
BLOCK_BYTES = 2**30  # blocks up to this size are kept and reused


def free_host_bytes() -> int:
    """Return the bytes of host memory that this process can take without swapping or being killed."""
    free, room = psutil.virtual_memory().available, cgroup_room()
    return free if room is None else min(free, room)


def cgroup_room(proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes up to the tightest memory limit of this process's cgroups; None without a limit.

    The page cache of files counts as free, as in psutil's `available`: the kernel drops it when needed.
    Source: Linux, cgroup-v2.rst and cgroup-v1/memory.rst.
    """
    rooms = [room_in(folder) for folder in cgroup_folders("memory", proc, root)]
    return min((room for room in rooms if room is not None), default=None)


def cgroup_folders(controller: str, proc: Path, root: Path) -> Iterator[Path]:
    """Yield the cgroup folders that may limit this process, nearest first. controller: memory or cpu."""
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
        # inside a container the path may name folders that are not mounted; parents then give the limit
        yield from (one for one in (folder, *folder.parents) if one == base or base in one.parents)


def room_in(folder: Path) -> int | None:
    """Return the bytes that one cgroup has left; None if it sets no limit."""
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
    """Return the bytes of a cgroup's use that are the page cache of files; 0 if unknown."""
    try:
        counters = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return sum(int(counters[f"{prefix}{kind}_file"]) for kind in ("active", "inactive"))
    except (OSError, ValueError, KeyError):
        return 0


def keep_freed_blocks() -> bool:
    """Make malloc keep freed memory, here and in forked processes; return False if it is not glibc."""
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(M_MMAP_THRESHOLD, BLOCK_BYTES) and libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1))
