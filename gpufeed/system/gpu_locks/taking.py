"""Takes GPUs, and a share of the node's cores, for this job alone until it ends.

This runs without torch, since GPUs are taken before CUDA starts. Jobs that run at once each have a share of
the cores, so that none disturbs another. Shares consist of whole physical cores if there are enough, and all
have one size. So a job has the same cores alone as beside others.
"""

import atexit
import getpass
import hashlib
import logging
import os
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpufeed.core.errors import Skip
from gpufeed.core.quantities import plural
from gpufeed.system.cores import CPUS, can_restrict, move_threads, siblings
from gpufeed.system.gpu_locks import gpu_listing
from gpufeed.system.gpu_locks.file_locks import Lock, holder, lock
from gpufeed.system.gpu_locks.gpu_listing import VISIBLE_DEVICES, Gpu, visible
from gpufeed.system.parent_watchdog import LOOK_S as CHILDREN_LOOK_S

log = logging.getLogger("gpufeed")
LOOK_S = 0.2
LOG_EVERY_S = 60  # between log lines while it waits
SETTLE_S = 2 * CHILDREN_LOOK_S  # after a killed holder, until its children have noticed and ended
NONE = ("", "-1", "NoDevFiles")  # masks for no GPU, as by CUDA's manual and by Slurm
TAKEN = "GPUFEED_TAKEN"  # environment variable: a node, and UUIDs of its GPUs
GATHERING = "gathering"  # lock of the one job on the node that may hold some GPUs while it waits for more


@dataclass(frozen=True)
class Allocation:
    """The GPUs and cores that this process has taken. cores: ids of its CPUs; empty if it shares all of them.

    refused: the sentence for a job that asks for more than the node has; it has taken nothing.
    """

    gpus: tuple[Gpu, ...] = ()
    cores: tuple[int, ...] = ()
    waited_s: float = 0.0
    refused: str | None = None
    locks: list[Lock] = field(default_factory=list)

    def release(self) -> None:
        for one in self.locks:
            one.release()
        self.locks.clear()


_allocation: Allocation | None = None


def take(
    count: int = 1,
    device: str = "auto",
    cores: int = 0,
    shares: int = 1,
    runs: Callable[[], bool] = lambda: True,
) -> Allocation | None:
    """Wait until `count` GPUs are free, take them, and hide all others from CUDA; None if the node has none.

    device: as in the config; only `auto` and `cuda` take GPUs. shares: jobs that run at once; with several,
    each takes as many of the node's CPUs, but at most `cores` (take_share). runs: polled while waiting; the
    process exits once it is false. What is taken stays with this process until it ends. A job that asks for
    more than the node has takes nothing, and `refuse` skips it. A second call changes nothing.
    """
    global _allocation
    if _allocation is not None or count < 1 or device not in ("auto", "cuda"):
        return _allocation
    there = gpu_listing.on_node()
    choices = visible(os.environ.get(VISIBLE_DEVICES), there)
    if not choices and (not there or os.environ[VISIBLE_DEVICES].strip() in NONE):
        return None
    if count > 1:  # CUDA gives a process only one MIG part
        choices = [gpu for gpu in choices if not gpu.part]
    if len(choices) < count:
        _allocation = Allocation(refused=refusal(count, choices, there))
        log.warning("%s", _allocation.refused)
        return _allocation
    if (torch := sys.modules.get("torch")) and torch.cuda.is_initialized():
        raise RuntimeError("CUDA was initialised before the GPU was taken, so it keeps the GPUs that it saw")
    about = describe_process()
    taken, waited_s = wait(count, sorted(choices, key=lambda gpu: gpu.busy), about, runs)
    os.environ[VISIBLE_DEVICES] = ",".join(gpu.uuid for gpu in taken)
    near = frozenset().union(*(gpu.cpus for gpu in taken))
    held, cpus = take_share(count, shares, cores, near, about) if shares > 1 else ([], [])
    _allocation = Allocation(tuple(taken), tuple(cpus), waited_s, None, [*taken.values(), *held])
    atexit.register(_allocation.release)
    log.info("took %s after %.1f s", ", ".join(f"{gpu.kind} {gpu.uuid}" for gpu in taken), waited_s)
    if cpus:
        log.info("took CPUs %s", ", ".join(map(str, cpus)))
    return _allocation


def hand_on() -> dict[str, str]:
    """Return environment variables with the GPUs taken, for processes that Slurm starts (take_part)."""
    if _allocation is None or not _allocation.gpus:
        return {}
    return {TAKEN: f"{os.uname().nodename} {','.join(gpu.uuid for gpu in _allocation.gpus)}"}


def take_part(count: int, runs: Callable[[], bool] = lambda: True) -> None:
    """Take as many GPUs in a process that Slurm started; on the first process's node, use that one's.

    Nothing is taken if the first process has taken nothing. Waits as `take` does.
    """
    node, _, uuids = os.environ.get(TAKEN, "").partition(" ")
    if node == os.uname().nodename:
        os.environ[VISIBLE_DEVICES] = uuids
    elif node:
        take(count, "cuda", runs=runs)


def wait(
    count: int, choices: Sequence[Gpu], about: dict[str, Any], runs: Callable[[], bool]
) -> tuple[dict[Gpu, Lock], float]:
    """Return `count` of the choices with their locks, the first ones first, and the seconds waited.

    A job takes all GPUs or none, so that no two jobs wait for each other. One job on the node may keep what
    it has while it waits for more, so that jobs with one GPU cannot starve it.
    """
    start, logged_s = time.monotonic(), None
    held: dict[Gpu, Lock] = {}
    gathers = None
    while True:
        for gpu in choices:
            if gpu not in held and len(held) < count and (one := lock(gpu_lock_name(gpu), about)):
                held[gpu] = one
        waited_s = time.monotonic() - start
        if len(held) == count:
            break
        gathers = gathers or (lock(GATHERING, about) if count > 1 else None)
        if not gathers:
            for one in held.values():
                one.release()
            held.clear()
        if logged_s is None or waited_s - logged_s >= LOG_EVERY_S:
            logged_s = waited_s
            who = taken_by(choices)
            log.info("waiting for %d of %d GPUs, %.0f s so far: %s", count, len(choices), waited_s, who)
        time.sleep(LOOK_S)
        if not runs():
            os._exit(1)
    if gathers:
        gathers.release()
    if any(one.left for one in held.values()):
        time.sleep(SETTLE_S)
    return {gpu: held[gpu] for gpu in choices if gpu in held}, time.monotonic() - start


def gpu_lock_name(gpu: Gpu) -> str:
    """Return the name of a GPU's lock."""
    return f"{gpu.uuid.replace('/', '_')}.lock"


def refusal(count: int, choices: Sequence[Gpu], there: Sequence[Gpu]) -> str:
    """Return why this node cannot give a job so many GPUs."""
    whole = sum(not gpu.part for gpu in there)
    mask = os.environ.get(VISIBLE_DEVICES)
    if not choices and count == 1:
        uuids = ", ".join(gpu.uuid for gpu in there)
        return f"{VISIBLE_DEVICES}={mask} names no GPU of this node, which has {uuids}."
    left = f", of which {VISIBLE_DEVICES}={mask} leaves it {len(choices)}" if mask is not None else ""
    kinds = f", {len(choices)} of them of one kind" if mask is None and len(choices) < whole else ""
    return f"The job asks for {count} GPUs, and this node has {plural(whole, 'whole GPU')}{left}{kinds}."


def describe_process() -> dict[str, Any]:
    """Return the description of this process for its lock files."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in some containers
        user = str(os.getuid())
    return {
        "pid": os.getpid(),
        "user": user,
        "job": Path(sys.argv[0]).stem.rpartition(".")[2],  # Snakemake runs tmpabc.measure_cell.py
        "node": os.uname().nodename,
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def taken_by(choices: Sequence[Gpu]) -> str:
    """Return which of the choices are held by which process."""
    holders = ((gpu, holder(gpu_lock_name(gpu))) for gpu in choices)
    found = [f"{gpu.uuid} is held by {in_words(by)}" for gpu, by in holders if by is not None]
    return "; ".join(found) or "they are just being released"


def in_words(by: Any) -> str:
    """Return the holder in words: its process, job and user, as far as its lock says."""
    if "pid" not in by:
        return "an unknown process"
    more = f"{by.get('job')} of {by.get('user')} on {by.get('node')}, since {by.get('since')}"
    return f"process {by['pid']} ({more})"


def taken() -> list[str]:
    """Return the UUIDs of the GPUs that this process has taken."""
    return [gpu.uuid for gpu in _allocation.gpus] if _allocation else []


def waited_s() -> float:
    """Return the seconds that this process has waited for its GPUs."""
    return _allocation.waited_s if _allocation else 0.0


def refuse() -> None:
    """Raise Skip in a job that asked for more GPUs than the node has."""
    if _allocation and _allocation.refused:
        raise Skip(_allocation.refused)


def check(seen: Callable[[], Sequence[str]]) -> None:
    """Raise RuntimeError if CUDA sees other GPUs than this process has taken.

    seen: returns their UUIDs without prefix. Nothing is checked in a process that has taken none.
    """
    if _allocation is None or not _allocation.gpus or any(gpu.part for gpu in _allocation.gpus):
        return
    taken, found = {gpu.uuid.removeprefix("GPU-") for gpu in _allocation.gpus}, set(seen())
    if found != taken:
        raise RuntimeError(
            f"this process has taken {', '.join(sorted(taken))}, and CUDA sees {', '.join(sorted(found))}: "
            "it was initialised before"
        )


def take_share(
    count: int, shares: int, cores: int, near: Collection[int], about: Mapping[str, Any]
) -> tuple[list[Lock], list[int]]:
    """Pin this process, and all that it starts, to `count` of the `shares`; return (locks, ids of the CPUs).

    cores: CPUs at most, of all `count` together. near: ids of CPUs whose shares are taken first. about: as in
    `lock`. Nothing is pinned on a system that cannot, with fewer CPUs than shares, or if other jobs hold the
    shares, which is logged.
    """
    allowed = sorted(os.sched_getaffinity(0)) if can_restrict() else []
    parts = split_cores(allowed, shares)
    if not parts:
        return [], []
    held: list[Lock] = []
    taken: list[int] = []
    for index in sorted(range(shares), key=lambda index: -len(set(parts[index]) & set(near))):
        if len(held) < count and (one := lock(share_lock_name(parts[index]), about)):
            held.append(one)
            taken += parts[index]
    if len(held) < count:
        for one in held:
            one.release()
        log.warning("other jobs hold the %d shares of the cores: this one runs on all cores", shares)
        return [], []
    taken = taken[: max(1, cores)]
    move_threads(taken)
    return held, sorted(taken)


def split_cores(allowed: Collection[int], shares: int) -> list[list[int]]:
    """Return the CPUs of each share, all of one size; none if there are fewer CPUs than shares."""
    cores: dict[frozenset[int], list[int]] = {}
    for cpu in sorted(allowed, key=lambda cpu: (processor_of(cpu), cpu)):
        cores.setdefault(siblings(cpu) or frozenset([cpu]), []).append(cpu)
    units = list(cores.values())
    if len(units) < shares or len({len(unit) for unit in units}) > 1:
        units = [[cpu] for unit in units for cpu in unit]
    size = len(units) // shares if shares > 0 else 0
    parts = [units[index * size : (index + 1) * size] for index in range(shares)] if size else []
    return [[cpu for unit in part for cpu in unit] for part in parts]


def processor_of(cpu: int) -> int:
    """Return the socket of a CPU; 0 if the kernel does not say."""
    try:
        return int((CPUS / f"cpu{cpu}" / "topology" / "physical_package_id").read_text())
    except (OSError, ValueError):
        return 0


def share_lock_name(cpus: Collection[int]) -> str:
    """Return the name of a share's lock, which depends on its CPUs and on the node."""
    text = f"{os.uname().nodename} {','.join(map(str, sorted(cpus)))}"
    return f"cores-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
