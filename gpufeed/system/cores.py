"""A part of the node's cores for all threads of this process, so that "4 cores" is true for libraries too.

What the kernel calls a CPU is a hardware thread; two or more of them may be one physical core.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TASKS = Path("/proc/self/task")
CPUS = Path("/sys/devices/system/cpu")


def can_restrict() -> bool:
    """Whether this system lets a process choose its cores (Linux does)."""
    return hasattr(os, "sched_setaffinity") and TASKS.is_dir()


@contextmanager
def on_cores(count: int) -> Iterator[list[int] | None]:
    """Keeps every thread that runs, and all that start inside, on `count` of the allowed cores.

    Takes one hardware thread of each physical core before a second one of any, where the kernel says which
    belong together: neighbours on many cloud machines, far apart on most others.

    Yields the ids of these cores; None, and restricts nothing, on a system without such a choice. Threads of
    other processes that were started before stay where they are.
    """
    before = os.sched_getaffinity(0) if can_restrict() else None
    try:
        yield keep_on(count)
    finally:
        if before is not None:
            move_threads(before)


def keep_on(count: int) -> list[int] | None:
    """As on_cores, until the end of this process."""
    if not can_restrict():
        return None
    chosen = sorted(apart(os.sched_getaffinity(0))[:count])
    move_threads(chosen)
    return chosen


def move_threads(cpus: Iterable[int]) -> None:
    """Put every thread of this process on these CPUs; what it starts later runs there, too."""
    for task in TASKS.iterdir():
        with suppress(ProcessLookupError):  # a thread that has just ended
            os.sched_setaffinity(int(task.name), cpus)


def apart(cpus: Iterable[int]) -> list[int]:
    """The ids in an order in which one of each physical core comes before a second one of any."""
    turns: dict[frozenset[int], int] = defaultdict(int)
    rank = {}
    for cpu in sorted(cpus):
        core = siblings(cpu) or frozenset([cpu])
        rank[cpu] = turns[core]
        turns[core] += 1
    return sorted(rank, key=lambda cpu: (rank[cpu], cpu))


def physical_cores(cpus: Iterable[int] | None) -> int | None:
    """How many physical cores these ids are on; None where that is unknown, as for ids that are None."""
    cores = {siblings(cpu) for cpu in cpus or ()}
    return len(cores) if cores and None not in cores else None


def siblings(cpu: int) -> frozenset[int] | None:
    """The ids of all hardware threads of this one's physical core, itself included; None if unknown.

    Source: Linux, Documentation/ABI/stable/sysfs-devices-system-cpu; lists such as "0,64" or "0-1".
    """
    try:
        text = (CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text()
        ends = [part.split("-") for part in text.strip().split(",")]
        found = frozenset(id for end in ends for id in range(int(end[0]), int(end[-1]) + 1))
    except (OSError, ValueError):
        return None
    return found if cpu in found else None
