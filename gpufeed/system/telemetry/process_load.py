"""The load of a training's process tree, and what other processes use of its cores.

Parents come before their children. A child's usage moves to its parent when it has ended and was waited for.
So reading downwards may miss a child that ends meanwhile, but never counts one twice.

Other processes used the busy time of the cores minus that of the tree. Busy is user, nice and system time.
Interrupts belong to no process, and stolen time to other guests of a hypervisor: neither counts. Source:
proc(5), /proc/stat.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import psutil

MIB = 2**20
STAT = Path("/proc/stat")
USER, NICE, SYSTEM = 0, 1, 2  # fields of a line `cpuN`, after its name; guest time is in them
BEFORE_GUEST = 8
# Many kernels sample what runs only at ticks, such as 250 a second. A core that was half busy for 2 s is then
# known to 2 percentage points (one standard deviation), several cores better.
SHORTEST_S = 2.0
# A core's counters, idle time included, grow by one second a second. Less means that they are not real.
PASSED = 0.5
CONTRADICTION = 0.05  # share of the cores by which the process tree may exceed the busy time
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Used:
    """Counters of a process tree, including children that have ended; None if unknown.

    storage_bytes: read from storage, also by page faults of mapped files. read_bytes: requested by calls of
    read, from any source. Source: proc(5), /proc/PID/io.
    """

    cpu_s: float
    storage_bytes: int | None
    read_bytes: int | None


def tree(root: int) -> list[psutil.Process]:
    """Return the process and its descendants, parents first; some that end meanwhile may be missing."""
    if not has_children_files():
        first = psutil.Process(root)
        return [first, *first.children(recursive=True)]
    found = [root]
    for pid in found:  # which grows while it is walked
        found += children(pid)
    return list(each_answer(found, psutil.Process))


@cache
def has_children_files() -> bool:
    """Return whether Linux lists the children of a process; otherwise all processes are searched."""
    return os.path.exists(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/children")


def children(pid: int) -> list[int]:
    """Return the children of all threads of a process. Source: proc(5), /proc/PID/task/TID/children."""
    found: list[int] = []
    with suppress(OSError):  # it has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_bytes().split())
    return found


def each_answer(things: Iterable, ask: Callable[..., Answer]) -> Iterator[Answer]:
    """Yield the answers of those that still exist and may be asked."""
    for thing in things:
        with suppress(psutil.Error, OSError):
            yield ask(thing)


def rss_mib(processes: Iterable[psutil.Process]) -> float:
    """Return the resident memory of the processes in MiB; shared pages count for each of them."""
    return sum(each_answer(processes, lambda process: process.memory_info().rss)) / MIB


def shared_out_mib(processes: Iterable[psutil.Process]) -> float:
    """Return the memory as own_mib, with each shared page divided among its processes."""
    return sum(each_answer(processes, shared_out_bytes)) / MIB


def shared_out_bytes(process: psutil.Process) -> int:
    """Return Pss_Anon and Pss_Shmem of a process; own_bytes on older kernels.

    Source: proc(5), /proc/PID/smaps_rollup.
    """
    with suppress(OSError, KeyError, ValueError):
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:]
        found = {name: int(value.split()[0]) for name, value in (line.split(":") for line in lines)}
        return 1024 * (found["Pss_Anon"] + found["Pss_Shmem"])
    return own_bytes(process)


def own_mib(processes: Iterable[psutil.Process]) -> float:
    """Return the resident memory of the processes that no file backs (anonymous and shared), in MiB.

    Pages of mapped files do not count, since the kernel can drop them. If unknown, it is all resident memory.
    """
    return sum(each_answer(processes, own_bytes)) / MIB


def own_bytes(process: psutil.Process) -> int:
    """Return RssAnon and RssShmem of a process. Source: proc(5), /proc/PID/status."""
    with suppress(OSError, KeyError, ValueError):
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        values = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
        return sum(int(values[name][0]) for name in ("RssAnon", "RssShmem")) * 1024
    return process.memory_info().rss


def used(processes: Iterable[psutil.Process]) -> Used:
    """Return what the processes, and their children that have ended, have used so far."""
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


@dataclass(frozen=True)
class CoreCounters:
    """Counters of the cores that this process may run on, in seconds of all of them together.

    cpus: their ids. passed_s: including idle time. tree_s: used by the process tree of the training.
    """

    cpus: frozenset[int]
    busy_s: float
    passed_s: float
    tree_s: float


def core_counters(tree_s: float, stat: Path = STAT) -> CoreCounters | None:
    """Read the counters; return None if the system hides them or the container has its own /proc/stat.

    tree_s: as in CoreCounters.
    """
    with suppress(OSError, ValueError, KeyError, AttributeError):  # no sched_getaffinity outside Linux
        cpus = frozenset(os.sched_getaffinity(0))
        if stat.stat().st_dev != stat.parent.stat().st_dev:  # mounted over the kernel's, as lxcfs does
            return None
        ticks = ticks_per_cpu(stat.read_text())
        hertz = os.sysconf("SC_CLK_TCK")
        busy = sum(ticks[cpu][field] for cpu in cpus for field in (USER, NICE, SYSTEM))
        passed = sum(sum(ticks[cpu][:BEFORE_GUEST]) for cpu in cpus)
        return CoreCounters(cpus, busy / hertz, passed / hertz, tree_s)
    return None


def ticks_per_cpu(text: str) -> dict[int, list[int]]:
    """Return the ticks of each line `cpuN` of /proc/stat, by N."""
    words = (line.split() for line in text.splitlines())
    return {
        int(name[3:]): [*map(int, ticks)]
        for name, *ticks in words
        if name.startswith("cpu") and name != "cpu" and len(ticks) > SYSTEM
    }


def others_share(
    spans: Sequence[tuple[CoreCounters | None, CoreCounters | None]], seconds: float
) -> float | None:
    """Return the share of the cores, 0..1, that other processes used over these spans of `seconds` in total.

    None if unknown: counters are missing, the cores changed, the time is too short, or the numbers contradict
    each other.
    """
    known = [(a, b) for a, b in spans if a is not None and b is not None]
    sets = {cpus for a, b in known for cpus in (a.cpus, b.cpus)}
    if len(known) < len(spans) or len(sets) != 1 or seconds < SHORTEST_S:
        return None
    whole_s = seconds * len(sets.pop())
    busy_s = sum(b.busy_s - a.busy_s for a, b in known)
    others = (busy_s - sum(b.tree_s - a.tree_s for a, b in known)) / whole_s
    if sum(b.passed_s - a.passed_s for a, b in known) < PASSED * whole_s or others < -CONTRADICTION:
        return None
    return min(1.0, max(0.0, others))


def used_by_others() -> tuple[int, list[tuple[float, str]]]:
    """Return how many cores this process may use, and what each other process has used of them, most first.

    That is in cores, since the last call, with the process's name; the first call returns zeros. Children of
    this process count as others. Processes on other cores do not count: a process is where it ran last.
    """
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    asked = ["pid", "name", "cpu_percent", *(["cpu_num"] if cpus else [])]
    told = [
        one.info for one in psutil.process_iter(asked) if one.pid != os.getpid()
    ]  # keeps what each had used
    here = [one for one in told if not cpus or one["cpu_num"] in cpus]
    found = (((one["cpu_percent"] or 0.0) / 100, f"{one['name']} (process {one['pid']})") for one in here)
    return len(cpus or ()) or os.cpu_count() or 1, sorted(found, reverse=True)
