"""A share of the node's cores for each of several jobs at once, so that none is timed on another's cores.

A share is of whole physical cores where there are enough, and all shares are of one size: a job has the same
cores alone as beside others.
"""

import hashlib
import logging
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpufeed.system.cores import CPUS, TASKS, can_restrict, siblings
from gpufeed.system.gpu_locks.file_locks import Lock, lock

log = logging.getLogger("gpufeed")
BOOT = Path("/proc/sys/kernel/random/boot_id")


def take_share(
    count: int, shares: int, cores: int, near: Collection[int], about: Mapping[str, Any]
) -> tuple[list[Lock], list[int]]:
    """Keeps this process, and all that it starts, on `count` of the `shares`; (locks, ids of the CPUs).

    cores: CPUs at most, of all `count` together. near: ids of CPUs whose shares are taken first. about: as in
    locks.lock. Nothing is kept where the system has no such choice, where there are fewer CPUs than shares,
    and where other jobs have the shares: that is then told in the log.
    """
    allowed = sorted(os.sched_getaffinity(0)) if can_restrict() else []
    parts = split(allowed, shares)
    if not parts:
        return [], []
    held: list[Lock] = []
    taken: list[int] = []
    for index in sorted(range(shares), key=lambda index: -len(set(parts[index]) & set(near))):
        if len(held) < count and (one := lock(name_of(allowed, shares, index), about)):
            held.append(one)
            taken += parts[index]
    if len(held) < count:
        for one in held:
            one.release()
        log.warning("other jobs have the %d shares of the cores: this one runs on all of them", shares)
        return [], []
    taken = taken[: max(1, cores)]
    for task in TASKS.iterdir():
        with suppress(ProcessLookupError):  # a thread that has just ended
            os.sched_setaffinity(int(task.name), taken)
    return held, sorted(taken)


def split(allowed: Collection[int], shares: int) -> list[list[int]]:
    """The CPUs of each share, as many in each; none where there are fewer CPUs than shares."""
    cores: dict[frozenset[int], list[int]] = {}
    for cpu in sorted(allowed, key=lambda cpu: (package(cpu), cpu)):
        cores.setdefault(siblings(cpu) or frozenset([cpu]), []).append(cpu)
    units = list(cores.values())
    if len(units) < shares or len({len(unit) for unit in units}) > 1:
        units = [[cpu] for unit in units for cpu in unit]
    size = len(units) // shares if shares > 0 else 0
    parts = [units[index * size : (index + 1) * size] for index in range(shares)] if size else []
    return [[cpu for unit in part for cpu in unit] for part in parts]


def package(cpu: int) -> int:
    """The processor that the CPU is in; 0 where the kernel does not say."""
    try:
        return int((CPUS / f"cpu{cpu}" / "topology" / "physical_package_id").read_text())
    except (OSError, ValueError):
        return 0


def name_of(allowed: Collection[int], shares: int, index: int) -> str:
    """The lock of a share: another one in another split, on other CPUs and on another node."""
    try:
        boot = BOOT.read_text().strip()
    except OSError:
        boot = os.uname().nodename
    text = f"{boot} {','.join(map(str, sorted(allowed)))}"
    return f"cores-{hashlib.sha256(text.encode()).hexdigest()[:12]}-{index}-of-{shares}"
