"""A part of the node's cores for all threads of this process, so that "4 cores" is true for libraries too."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TASKS = Path("/proc/self/task")


def can_restrict() -> bool:
    """Whether this system lets a process choose its cores (Linux does)."""
    return hasattr(os, "sched_setaffinity") and TASKS.is_dir()


@contextmanager
def on_cores(count: int) -> Iterator[list[int] | None]:
    """Keeps every thread that runs, and all that start inside, on `count` of the allowed cores.

    Yields the ids of these cores; None, and restricts nothing, on a system without such a choice. Threads of
    other processes that were started before stay where they are.
    """
    if not can_restrict():
        yield None
        return
    before = os.sched_getaffinity(0)
    chosen = sorted(before)[:count]
    _move(chosen)
    try:
        yield chosen
    finally:
        _move(before)


def _move(cores) -> None:
    for task in TASKS.iterdir():
        with suppress(ProcessLookupError):  # a thread that has just ended
            os.sched_setaffinity(int(task.name), cores)
