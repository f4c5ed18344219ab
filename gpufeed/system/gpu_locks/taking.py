"""GPUs, and a share of the node's cores, for this job alone, until its end.

Without torch: GPUs are taken before CUDA is asked anything. Several jobs at once each have a share of the
cores, so that none is timed on another's. A share is of whole physical cores where there are enough, and all
shares are of one size: a job has the same cores alone as beside others.
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
from gpufeed.system.cores import CPUS, can_restrict, move_threads, siblings
from gpufeed.system.gpu_locks import gpu_listing
from gpufeed.system.gpu_locks.file_locks import Lock, holder, lock
from gpufeed.system.gpu_locks.gpu_listing import VISIBLE_DEVICES, Gpu, visible
from gpufeed.system.parent_watchdog import LOOK_S as CHILDREN_LOOK_S

log = logging.getLogger("gpufeed")
LOOK_S = 0.2
LOG_EVERY_S = 60  # between two lines of the log that say for what it waits
SETTLE_S = 2 * CHILDREN_LOOK_S  # after a killed holder: its children look for it so often, and then end
NONE = ("", "-1", "NoDevFiles")  # masks that mean no GPU: what CUDA advises, and what Slurm sets
TAKEN = "GPUFEED_TAKEN"  # in the environment: a node, and UUIDs of its GPUs
GATHERING = "gathering"  # the lock of the one job on the node that may hold some GPUs and wait for more


@dataclass(frozen=True)
class Lease:
    """What this process has for itself. cores: ids of its CPUs, none where it shares them all.

    refused: the sentence of a job that asks for more than there are, and has nothing.
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


_lease: Lease | None = None


def take(
    count: int = 1,
    device: str = "auto",
    cores: int = 0,
    shares: int = 1,
    runs: Callable[[], bool] = lambda: True,
) -> Lease | None:
    """Waits until `count` GPUs are free, takes them, and makes CUDA see them alone; None if there is none.

    device: as in the config; nothing is taken for another than `auto` and `cuda`. shares: jobs that run at
    once; with several, each gets as many of the node's CPUs for itself, `cores` at most (take_share). runs:
    asked while it waits; once it is false the process ends. What is taken stays with this process, whose end
    gives it back. A job that asks for more than there are has none, and `refuse` skips it. A second call
    changes nothing.
    """
    global _lease
    if _lease is not None or count < 1 or device not in ("auto", "cuda"):
        return _lease
    there = gpu_listing.on_node()
    choices = visible(os.environ.get(VISIBLE_DEVICES), there)
    if not choices and (not there or os.environ[VISIBLE_DEVICES].strip() in NONE):
        return None
    if count > 1:  # CUDA gives a process one part of a GPU, whatever it asks for
        choices = [gpu for gpu in choices if not gpu.part]
    if len(choices) < count:
        _lease = Lease(refused=refusal(count, choices, there))
        log.warning("%s", _lease.refused)
        return _lease
    if (torch := sys.modules.get("torch")) and torch.cuda.is_initialized():
        raise RuntimeError("a GPU is taken after CUDA has been asked, which sees what it saw then")
    about = describe_process()
    taken, waited_s = wait(count, sorted(choices, key=lambda gpu: gpu.busy), about, runs)
    os.environ[VISIBLE_DEVICES] = ",".join(gpu.uuid for gpu in taken)
    near = frozenset().union(*(gpu.cpus for gpu in taken))
    held, cpus = take_share(count, shares, cores, near, about) if shares > 1 else ([], [])
    _lease = Lease(tuple(taken), tuple(cpus), waited_s, None, [*taken.values(), *held])
    atexit.register(_lease.release)
    log.info("has %s, after %.1f s", ", ".join(f"{gpu.kind} {gpu.uuid}" for gpu in taken), waited_s)
    if cpus:
        log.info("has CPUs %s", ", ".join(map(str, cpus)))
    return _lease


def hand_on() -> dict[str, str]:
    """What tells processes that Slurm starts for this one, on its node and others, of what it has taken."""
    if _lease is None or not _lease.gpus:
        return {}
    return {TAKEN: f"{os.uname().nodename} {','.join(gpu.uuid for gpu in _lease.gpus)}"}


def take_part(count: int, runs: Callable[[], bool] = lambda: True) -> None:
    """In such a process: takes as many GPUs of its own node; on that of the first one it has that one's.

    Nothing is taken where the first one has taken nothing. Waits, with `runs`, as `take` does.
    """
    node, _, uuids = os.environ.get(TAKEN, "").partition(" ")
    if node == os.uname().nodename:
        os.environ[VISIBLE_DEVICES] = uuids
    elif node:
        take(count, "cuda", runs=runs)


def wait(
    count: int, choices: Sequence[Gpu], about: dict[str, Any], runs: Callable[[], bool]
) -> tuple[dict[Gpu, Lock], float]:
    """`count` of the choices with their locks, those first that come first, and the seconds until then.

    All or nothing, so that no two jobs wait for each other; one job on the node alone may keep what it has
    while it waits for more, so that jobs with one GPU do not pass it for ever.
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
            log.info("waits for %d of %d GPUs, %.0f s so far: %s", count, len(choices), waited_s, who)
        time.sleep(LOOK_S)
        if not runs():
            os._exit(1)
    if gathers:
        gathers.release()
    if any(one.left for one in held.values()):
        time.sleep(SETTLE_S)
    return {gpu: held[gpu] for gpu in choices if gpu in held}, time.monotonic() - start


def gpu_lock_name(gpu: Gpu) -> str:
    """The lock of a GPU."""
    return f"{gpu.uuid.replace('/', '_')}.lock"


def refusal(count: int, choices: Sequence[Gpu], there: Sequence[Gpu]) -> str:
    """Why a job cannot have so many GPUs here."""
    whole = sum(not gpu.part for gpu in there)
    mask = os.environ.get(VISIBLE_DEVICES)
    if not choices and count == 1:
        uuids = ", ".join(gpu.uuid for gpu in there)
        return f"{VISIBLE_DEVICES}={mask} names no GPU of this node, which has {uuids}."
    left = f", of which {VISIBLE_DEVICES}={mask} leaves it {len(choices)}" if mask is not None else ""
    kinds = f", {len(choices)} of them of one kind" if mask is None and len(choices) < whole else ""
    ones = "1 whole one" if whole == 1 else f"{whole} whole ones"
    return f"The job asks for {count} GPUs, and this node has {ones}{left}{kinds}."


def describe_process() -> dict[str, Any]:
    """Return what the files of its locks say of this process."""
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
    """Who holds which of the choices."""
    holders = ((gpu, holder(gpu_lock_name(gpu))) for gpu in choices)
    found = [f"{gpu.uuid} is held by {in_words(by)}" for gpu, by in holders if by is not None]
    return "; ".join(found) or "they are given back at this moment"


def in_words(by: Any) -> str:
    """A holder in words: its process, job and user, as far as its lock says."""
    if "pid" not in by:
        return "a process that says nothing of itself"
    more = f"{by.get('job')} of {by.get('user')} on {by.get('node')}, since {by.get('since')}"
    return f"process {by['pid']} ({more})"


def taken() -> list[str]:
    """UUIDs of the GPUs that this process has taken."""
    return [gpu.uuid for gpu in _lease.gpus] if _lease else []


def waited_s() -> float:
    """Seconds that this process has waited for its GPUs."""
    return _lease.waited_s if _lease else 0.0


def refuse() -> None:
    """Raises Skip in a job that asked for more GPUs than there are."""
    if _lease and _lease.refused:
        raise Skip(_lease.refused)


def check(seen: Callable[[], Sequence[str]]) -> None:
    """Raises RuntimeError where CUDA sees other GPUs than this process has taken.

    seen: gives their UUIDs, without prefix. Nothing is asked in a process that has taken none.
    """
    if _lease is None or not _lease.gpus or any(gpu.part for gpu in _lease.gpus):
        return
    taken, found = {gpu.uuid.removeprefix("GPU-") for gpu in _lease.gpus}, set(seen())
    if found != taken:
        raise RuntimeError(
            f"this process has taken {', '.join(sorted(taken))}, and CUDA sees {', '.join(sorted(found))}, "
            "as if it had been asked before"
        )


def take_share(
    count: int, shares: int, cores: int, near: Collection[int], about: Mapping[str, Any]
) -> tuple[list[Lock], list[int]]:
    """Keeps this process, and all that it starts, on `count` of the `shares`; (locks, ids of the CPUs).

    cores: CPUs at most, of all `count` together. near: ids of CPUs whose shares are taken first. about: as in
    `lock`. Nothing is kept where the system has no such choice, where there are fewer CPUs than shares,
    and where other jobs have the shares, which is then logged.
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
        log.warning("other jobs have the %d shares of the cores: this one runs on all of them", shares)
        return [], []
    taken = taken[: max(1, cores)]
    move_threads(taken)
    return held, sorted(taken)


def split_cores(allowed: Collection[int], shares: int) -> list[list[int]]:
    """The CPUs of each share, as many in each; none where there are fewer CPUs than shares."""
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
    """The processor that the CPU is in; 0 where the kernel does not say."""
    try:
        return int((CPUS / f"cpu{cpu}" / "topology" / "physical_package_id").read_text())
    except (OSError, ValueError):
        return 0


def share_lock_name(cpus: Collection[int]) -> str:
    """The lock of a share: another one in another split, and on another node that sees the same folder."""
    text = f"{os.uname().nodename} {','.join(map(str, sorted(cpus)))}"
    return f"cores-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
