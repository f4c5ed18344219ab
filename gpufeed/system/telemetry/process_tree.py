"""A process and all that descend from it: which they are, what memory they hold, what they have used.

Parents always come before their children. What a child has used goes over to its parent when it has ended and
been waited for, so that whoever reads downwards may miss a child that ends meanwhile, but counts none twice.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import psutil

MIB = 2**20
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Used:
    """Counters of a process tree, children that have ended included; None where the system does not tell.

    storage_bytes: read from storage, through page faults of mapped files too. read_bytes: asked for by calls
    of read, wherever they came from. Source: proc(5), /proc/PID/io.
    """

    cpu_s: float
    storage_bytes: int | None
    read_bytes: int | None


def tree(root: int) -> list[psutil.Process]:
    """The process and its descendants, parents first; those that end meanwhile may be missing."""
    if not has_children_files():
        first = psutil.Process(root)
        return [first, *first.children(recursive=True)]
    found = [root]
    for pid in found:  # which grows while it is walked
        found += children(pid)
    return list(each(found, psutil.Process))


@cache
def has_children_files() -> bool:
    """Whether Linux tells the children of a process: without it all processes of the node are looked at."""
    return os.path.exists(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/children")


def children(pid: int) -> list[int]:
    """The children of all threads of a process. Source: proc(5), /proc/PID/task/TID/children."""
    found: list[int] = []
    with suppress(OSError):  # it has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_bytes().split())
    return found


def each(things: Iterable, ask: Callable[..., Answer]) -> Iterator[Answer]:
    """The answers of all that are still there and may be asked."""
    for thing in things:
        with suppress(psutil.Error, OSError):
            yield ask(thing)


def rss_mib(processes: Iterable[psutil.Process]) -> float:
    """Resident memory of the processes together, in MiB; what several of them share counts for each."""
    return sum(each(processes, lambda process: process.memory_info().rss)) / MIB


def own_mib(processes: Iterable[psutil.Process]) -> float:
    """Resident memory that no file backs (anonymous and shared), of the processes together, in MiB.

    Pages of mapped files are left out: the kernel takes them back when it wants to. Where the system does not
    tell them apart it is all resident memory.
    """
    return sum(each(processes, own_bytes)) / MIB


def own_bytes(process: psutil.Process) -> int:
    """Source: proc(5), /proc/PID/status, RssAnon and RssShmem."""
    with suppress(OSError, KeyError, ValueError):
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        values = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
        return sum(int(values[name][0]) for name in ("RssAnon", "RssShmem")) * 1024
    return process.memory_info().rss


def used(processes: Iterable[psutil.Process]) -> Used:
    """What they, and the children of theirs that have ended, have used so far."""
    cpu_s, storage, read = 0.0, [], []
    for process in processes:
        with suppress(psutil.Error, OSError):
            times = process.cpu_times()
            cpu_s += times.user + times.system
            cpu_s += getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
        with suppress(psutil.Error, OSError, AttributeError):  # not outside Linux
            counted = process.io_counters()  # of ended children too: Linux adds them
            storage.append(counted.read_bytes)
            read.append(counted.read_chars)
    return Used(cpu_s, sum(storage) if storage else None, sum(read) if read else None)
