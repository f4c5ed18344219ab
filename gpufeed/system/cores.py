"""Pins all threads of this process to some of the node's cores, so that "4 cores" holds for libraries too.

A CPU of the kernel is a hardware thread; a physical core may have two or more of them.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TASKS = Path("/proc/self/task")
CPUS = Path("/sys/devices/system/cpu")


def can_restrict() -> bool:
    """Return whether this system can pin a process to cores (Linux can)."""
    return hasattr(os, "sched_setaffinity") and TASKS.is_dir()


@contextmanager
def on_cores(count: int) -> Iterator[list[int] | None]:
    """Pin all threads of this process, and those that start in the block, to `count` of the allowed CPUs.

    CPUs are chosen from different physical cores first, if the kernel says which belong together. On many
    cloud machines neighbours share a core, on most others they are far apart.

    Yields the ids of the CPUs. Yields None, and pins nothing, on a system that cannot. Processes that were
    started before stay where they are.
    """
    before = os.sched_getaffinity(0) if can_restrict() else None
    try:
        yield pin_to(count)
    finally:
        if before is not None:
            move_threads(before)


def pin_to(count: int) -> list[int] | None:
    """Pin this process as on_cores does, until it ends."""
    if not can_restrict():
        return None
    chosen = sorted(apart(os.sched_getaffinity(0))[:count])
    move_threads(chosen)
    return chosen


def move_threads(cpus: Iterable[int]) -> None:
    """Pin every thread of this process, and what it starts later, to these CPUs."""
    for task in TASKS.iterdir():
        with suppress(ProcessLookupError):  # a thread that has just ended
            os.sched_setaffinity(int(task.name), cpus)


def apart(cpus: Iterable[int]) -> list[int]:
    """Sort CPU ids so that one of each physical core comes before a second one of any."""
    turns: dict[frozenset[int], int] = defaultdict(int)
    rank = {}
    for cpu in sorted(cpus):
        core = siblings(cpu) or frozenset([cpu])
        rank[cpu] = turns[core]
        turns[core] += 1
    return sorted(rank, key=lambda cpu: (rank[cpu], cpu))


def physical_cores(cpus: Iterable[int] | None) -> int | None:
    """Return the number of physical cores of these CPUs; None if unknown."""
    cores = {siblings(cpu) for cpu in cpus or ()}
    return len(cores) if cores and None not in cores else None


def siblings(cpu: int) -> frozenset[int] | None:
    """Return the CPUs on the physical core of this one, itself included; None if unknown.

    Source: Linux, Documentation/ABI/stable/sysfs-devices-system-cpu; lists such as "0,64" or "0-1".
    """
    try:
        text = (CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text()
        ends = [part.split("-") for part in text.strip().split(",")]
        found = frozenset(id for end in ends for id in range(int(end[0]), int(end[-1]) + 1))
    except (OSError, ValueError):
        return None
    return found if cpu in found else None
