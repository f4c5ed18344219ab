"""How much of this process's cores other processes use: what was busy of them, less what the tree has used.

Busy is user, nice and system time. Interrupts belong to no process, and time that a hypervisor gave to other
guests (steal) to none of this machine: neither counts. Source: proc(5), /proc/stat.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

STAT = Path("/proc/stat")
USER, NICE, SYSTEM = 0, 1, 2  # fields of a line `cpuN`, after its name; guest time is in them
BEFORE_GUEST = 8
# Many kernels look only at ticks, such as 250 a second, at what runs. How busy a core was that was half busy
# for 2 s is then known to 2 points of 100 (one standard deviation); several cores are known better.
SHORTEST_S = 2.0
# With idle time a core's counters pass one second a second. Less says that they are not this machine's.
PASSED = 0.5
CONTRADICTION = 0.05  # of the cores: by how much the process tree alone may exceed all that was busy


@dataclass(frozen=True)
class Cores:
    """Counters of the cores that this process may run on, in seconds of all of them together.

    cpus: their ids. passed_s: with idle time. tree_s: what the process tree of the training has used.
    """

    cpus: frozenset[int]
    busy_s: float
    passed_s: float
    tree_s: float


def cores(tree_s: float, stat: Path = STAT) -> Cores | None:
    """Read the counters; None where the system hides them, and in a container with a /proc/stat of its own.

    tree_s: as in Cores.
    """
    with suppress(OSError, ValueError, KeyError, AttributeError):  # no sched_getaffinity outside Linux
        cpus = frozenset(os.sched_getaffinity(0))
        if stat.stat().st_dev != stat.parent.stat().st_dev:  # mounted over the kernel's, as lxcfs does
            return None
        ticks = per_cpu(stat.read_text())
        hertz = os.sysconf("SC_CLK_TCK")
        busy = sum(ticks[cpu][field] for cpu in cpus for field in (USER, NICE, SYSTEM))
        passed = sum(sum(ticks[cpu][:BEFORE_GUEST]) for cpu in cpus)
        return Cores(cpus, busy / hertz, passed / hertz, tree_s)
    return None


def per_cpu(text: str) -> dict[int, list[int]]:
    """Return the ticks of each line `cpuN` of /proc/stat, by N."""
    words = (line.split() for line in text.splitlines())
    return {
        int(name[3:]): [*map(int, ticks)]
        for name, *ticks in words
        if name.startswith("cpu") and name != "cpu" and len(ticks) > SYSTEM
    }


def share(spans: Sequence[tuple[Cores | None, Cores | None]], seconds: float) -> float | None:
    """Return the share of the cores, 0..1, that others used over these spans, which took so many seconds.

    None where it is unknown: counters are missing, the cores changed, the time is too short, or the numbers
    contradict each other (all zeros, or a process tree that used more than was busy).
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
