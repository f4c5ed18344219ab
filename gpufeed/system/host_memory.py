"""How much of the host's memory this process may still take: the machine's, cut by its cgroup's limit.

A batch system gives a job a part of a node's memory by a cgroup. Whoever takes more is killed, however much
the machine has left.
"""

from collections.abc import Iterator
from pathlib import Path

import psutil

# (limit, use, prefix of the counters of the whole tree in memory.stat) of cgroups of version 2 and 1
VERSIONS = (
    ("memory.max", "memory.current", ""),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)


def free_host_bytes() -> int:
    """Bytes of host memory that this process can take without swapping or being killed."""
    free, room = psutil.virtual_memory().available, cgroup_room()
    return free if room is None else min(free, room)


def cgroup_room(proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes up to the nearest memory limit, from this process's cgroup up to the root; None without a limit.

    The page cache of files counts as free, as it does in psutil's `available`: it makes room when it must.
    Source: Linux, cgroup-v2.rst and cgroup-v1/memory.rst.
    """
    rooms = [room_in(folder) for folder in folders(proc, root)]
    return min((room for room in rooms if room is not None), default=None)


def folders(proc: Path, root: Path) -> Iterator[Path]:
    """The folders that may limit the memory of the process, nearest first."""
    try:
        lines = proc.read_text().splitlines()
    except OSError:
        return  # no cgroups outside Linux
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        base = root / "memory" if controllers else root
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
