"""Why a watched loop is below its limit: causes, evidence, what to change, and the most that could gain.

Every threshold is here. A cause that is not certain is not named.
"""

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from gpufeed.system.environment import cores_allowed
from gpufeed.system.host_memory import free_host_bytes
from gpufeed.watch.signs import Signs, slope
from gpufeed.watch.stages import COLLATE, DECODE, READ, SAMPLE, TRANSFORM

# A smaller loss is not worth a change of loader, and within the scatter of a busy machine.
LOSS, SURE = 0.08, 0.97  # SURE: bound for the upper end of utilization's interval, if there is one
# Share of the time. Without an interval, a smaller loss is not blamed on the loader; a larger one is not
# called nothing, even if nothing waits at the fetch.
LITTLE = 0.15
STALL = 1 / 3  # of the loss that must be waiting at the fetch; otherwise something else is slow
FULL = 0.8  # share of the loader's queue that is ready: it keeps up, and the wait is for passing batches on
HANDED_S = 2e-3  # a worker needs this to pass a batch on, so that a batch made faster needs no worker
START, START_PERSISTENT = 0.05, 0.15  # of an epoch; a persistent worker still makes its first batch alone
# A fetch is late by so many steps, and at least so long, since a scheduler's hiccup is shorter.
LATE_STEPS, LATE_S = 5, 0.1
# Fewest late fetches, and their largest share. With N workers at most LATE_OF_ROUND / N: if one worker is
# late in every round, all of its samples are slow.
LATE_FETCHES, LATE_MOST, LATE_OF_ROUND = 2, 0.05, 0.5
LATE_SHARE, LATE_OF_WAITS = 0.04, 0.5  # least share of the run, and of the excess time of all fetches
LATE_BODIES = 1 / 3  # most that late steps may take of that: a busy machine is late everywhere
GROWN, GROWN_MIDDLE, GROWN_STEP = 3, 1.3, 0.2  # last third of waits over the first, middle; share of a step
GROWN_LEAST = 24  # fetches, or groups of as many as there are workers
MEMORY_BYTES, MEMORY_SHARE, MEMORY_STEPS = 64 * 2**20, 0.1, 100  # growth beyond filling caches
# Shares of the steps' time in which this thread uses the CPU (a busy machine halves it) and holds the GIL.
PYTHON_CPU, PYTHON_HELD = 0.3, 0.6
BOUND = 1.05  # times the step's time: CPU work for a batch that all cores together cannot do in time
HOLDS = 0.5  # of a batch's time: less CPU work than this is not the loader's limit
SUFFICES = 0.9  # of what the limit allows: then more workers are named before a stage
FAR_MORE = 4 / 3  # times the gain of leaving out a stage: then the first workers are named before it
DOMINANT = 0.5  # of all stages
DELAYED = 0.3  # of the workers' time without a core
SHM = 0.5  # of /dev/shm that full queues take
COPIED = 0.2  # of a step's time
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Cause:
    """A cause of lost time.

    name: one word or two. said: the evidence in a sentence. seen: the same as numbers, with units in names.
    at_most: how many times as fast the training can be without it; None if unknown.
    """

    name: str
    said: str
    seen: dict[str, float]
    change: str
    at_most: float | None = None


CHANGES = {
    READ: "Keep the files in memory or on a local disk, or pack them into large files.",
    DECODE: "Store the samples at the size that training needs, or decode on the device "
    '(`torchvision.io.decode_jpeg(..., device="cuda")`, DALI).',
    TRANSFORM: "Do fixed transforms once and store the result; do random ones on whole batches on the device "
    "(`torchvision.transforms.v2`).",
    SAMPLE: "Profile `dataset[0]` to see what it does. Store the result of fixed work once; do random work "
    "on whole batches on the device.",
    COLLATE: "Let `collate_fn` stack arrays of one size and do nothing else.",
}
DOES = {
    READ: "reading, or another wait of the dataset,",
    DECODE: "decoding",
    TRANSFORM: "transforming",
    SAMPLE: "work of the dataset's `__getitem__`, outside of known decoders and transforms,",
    COLLATE: "`collate_fn`",
}


def times(value: float) -> str:
    return f"{value:.2f} times"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


class Diagnosis:
    """The causes of one result."""

    def __init__(self, found: Mapping[str, Any], signs: Signs, device: str):
        self.found, self.signs, self.device = found, signs, device
        self.loader, self.cores = signs.loader, cores_allowed()
        self.au = found["au"]["value"]
        size = found["batch_samples"] or 1
        if self.au is not None:
            self.now_s = size / found["end_to_end"]["samples_per_second"]
            self.step_s = self.au * self.now_s
        self.limit = max(1.0, 1 / self.au) if self.au else None
        self.steady = [(step, at, seconds) for step, at, seconds, stocked in signs.fetches if not stocked]

    def named(self) -> list[Cause]:
        """Return all causes that are certain, the one with most to gain first, then risks."""
        if self.au is None:
            return []
        of_loader = list(self.of_loader()) if self.input_bound and not self.keeps_up else []
        if growth := self.growth():
            of_loader.insert(0 if growth.seen["share_of_waits"] >= DOMINANT else len(of_loader), growth)
        groups = [of_loader, *([one] if one else [] for one in (self.slow(), self.start(), self.python()))]
        groups = sorted(filter(None, groups), key=lambda group: -(group[0].at_most or 1.0))
        risks = [one for one in (self.memory(), self.shared_memory(), self.copy()) if one]
        low = self.found["au"]["low"]
        lowest = self.au if low is None else low + LITTLE  # an interval is wide on a busy machine
        much = self.input_bound or min(self.au, lowest) < 1 - LITTLE or self.waited > LITTLE
        nothing = [] if groups or much else [self.nothing()]
        return [one for group in groups for one in group] + risks + nothing

    @property
    def input_bound(self) -> bool:
        high, loss = self.found["au"]["high"], 1 - self.au
        stall = self.found["data_stall_share"] or 0.0
        return (
            loss >= (LITTLE if high is None else LOSS)
            and (high is None or high < SURE)
            and stall >= STALL * loss
        )

    @property
    def waited(self) -> float:
        """The mean share of time in fetches, which, unlike a median, includes a few very long ones."""
        waits, bodies = [one[2] for one in self.steady], self.signs.bodies
        if not waits or not bodies:
            return 0.0
        return fmean(waits) / max(1e-9, fmean(waits) + fmean(bodies))

    @property
    def keeps_up(self) -> bool:
        return bool(self.signs.full) and median(self.signs.full) >= FULL

    def nothing(self) -> Cause:
        return Cause(
            "nothing",
            f"The steps are the limit: a loader without cost would make them {times(self.limit)} as fast.",
            {"accelerator_utilization": self.au},
            "Leave the loader as it is: only a faster model, lower precision or a faster device can help.",
        )

    def without(self, seconds: float) -> float:
        """Return how many times as fast the training is if its loader needs this long for a batch."""
        rest = seconds + self.step_s if self.loader.get("workers") == 0 else max(seconds, self.step_s)
        return max(1.0, min(self.limit, self.now_s / rest))

    def of_loader(self) -> Iterator[Cause]:
        """Yield the causes of a loader that is always too slow."""
        workers = self.loader.get("workers")
        if workers is None:
            yield Cause(
                "loader",
                f"The loader needs {ms(self.now_s)} for a batch, a step {ms(self.step_s)}.",
                {"batch_seconds": self.now_s, "step_seconds": self.step_s},
                "Give the loader more threads or processes; gpufeed cannot look into this kind.",
                self.limit,
            )
        elif workers == 0:
            batch_s = self.now_s - self.step_s
            stage, first = self.stage(batch_s), self.workers(0, batch_s, 0.0) if batch_s > HANDED_S else None
            both = list(filter(None, (stage, first)))
            yield from both[::-1] if stage and first and first.at_most > FAR_MORE * stage.at_most else both
        else:
            yield from self.of_workers(workers)

    def of_workers(self, workers: int) -> Iterator[Cause]:
        if not (seen := self.signs.per_batch()):
            return  # whether they wait or work is unknown
        cpu_s, delayed = seen
        if worked := self.signs.worked:  # the step has its core, too
            cpu_s += sum(one for _, one in worked) / len(worked)
        at_best_s = cpu_s / self.cores  # no faster than all cores together
        bound = at_best_s >= max(BOUND * self.step_s, HOLDS * self.now_s)
        stage = self.stage(self.now_s)
        more = self.workers(workers, self.now_s, at_best_s)
        starved = (delayed or 0.0) >= DELAYED
        many = workers > self.cores and (bound or starved)
        if many or (bound and workers == self.cores and not stage):
            yield Cause(
                "cores",
                f"The training and {workers} workers share {self.cores} core{'s' * (self.cores > 1)}. "
                f"A batch takes {ms(cpu_s)} of CPU time, at least {ms(at_best_s)} on all cores; "
                f"a step takes {ms(self.step_s)}.",
                {"workers": workers, "cores": self.cores, "cpu_seconds_per_batch": cpu_s}
                | ({} if delayed is None else {"share_without_core": delayed}),
                f"Use `num_workers={self.cores}` and give the job more cores, or make a sample cheaper.",
                self.limit,
            )
            more = None
        elif workers >= self.cores and (bound or starved or stage):
            more = None if bound or starved else more
        elif more.at_most >= SUFFICES * self.limit or not stage:
            yield more
            more = None
        yield from filter(None, (stage, more))

    def workers(self, workers: int, batch_s: float, at_best_s: float) -> Cause:
        """Return the advice to use more workers. batch_s: between two batches now; at_best_s: with
        all cores.
        """
        needed = max(workers + 1, math.ceil(max(1, workers) * batch_s / self.step_s))
        new = min(needed, max(self.cores, workers + 1))
        then_s = max(at_best_s, max(1, workers) * batch_s / new)
        if workers:
            said = f"With {workers} worker{'s' * (workers > 1)} a batch comes every {ms(batch_s)}, "
            said += f"and a step takes {ms(self.step_s)}."
        else:
            said = f"No worker processes: each step computes for {ms(self.step_s)} and waits another "
            said += f"{ms(batch_s)} for its batch."
        seen = {
            "workers": workers,
            "cores": self.cores,
            "batch_seconds": batch_s,
            "step_seconds": self.step_s,
        }
        most = max(1.0, min(self.limit, self.now_s / max(self.step_s, then_s)))
        stays = ", persistent_workers=True" if self.loader.get("persistent") is False else ""
        return Cause("workers", said, seen, f"Use `DataLoader(..., num_workers={new}{stays})`.", most)

    def shares(self) -> dict[str, float]:
        """Return each stage's share of one process's time for a batch; empty without deep=True."""
        seconds = self.found["stages"]["seconds"] if self.found["stages"] else {}
        whole = sum(seconds.values())
        return {name: one / whole for name, one in seconds.items()} if whole else {}

    def worth(self) -> dict[str, float]:
        """Return how many times as fast the training could be at most without each stage."""
        if self.au is None:
            return {}
        batch_s = self.now_s - (0 if self.loader.get("workers") else self.step_s)
        return {name: self.without(batch_s * (1 - share)) for name, share in self.shares().items()}

    def stage(self, batch_s: float) -> Cause | None:
        """Return the stage that takes most of a batch's time, if one dominates."""
        name, share = max(self.shares().items(), key=lambda one: one[1], default=("", 0.0))
        if share < DOMINANT:
            return None
        seconds = self.found["stages"]["seconds"]
        whole = sum(seconds.values())
        said = (
            f"{DOES[name]} takes {ms(seconds[name])} of the {ms(whole)} that one process needs for a batch."
        )
        seen = {"seconds_per_batch": seconds[name], "share_of_stages": share}
        return Cause(
            name, said[0].upper() + said[1:], seen, CHANGES[name], self.without(batch_s * (1 - share))
        )

    def growth(self) -> Cause | None:
        """Find a loader that gets slower over the steps, or over those of each epoch."""
        whole, each = self.grown(self.steady), self.grown(sorted(self.steady, key=lambda one: one[1]))
        _, delayed = self.signs.per_batch() or (0.0, None)
        if not (whole or each) or not self.input_bound or (delayed or 0.0) >= DELAYED:
            return None  # workers without a core may be slowed down by other processes
        (first, last), of = whole or each, "steps" if whole else "steps of an epoch"
        mean = fmean(seconds for *_, seconds in self.steady)
        share = max(0.0, mean - first) / mean
        return Cause(
            "growth",
            f"The loader gets slower: a fetch waits {ms(first)} in the first third of the {of}, "
            f"{ms(last)} in the last.",
            {"first_third_seconds": first, "last_third_seconds": last, "share_of_waits": share},
            "Look for what the dataset or its `collate_fn` keeps or searches: lists, caches, open files; "
            "`persistent_workers=False` restarts workers each epoch.",
            min(self.limit, (mean + self.step_s) / (mean * (1 - share) + self.step_s)),
        )

    def grown(self, fetches: Sequence[tuple[int, int, float]]) -> tuple[float, float] | None:
        """Return the waits of the first and the last third, if they grow steadily."""
        size = max(1, self.loader.get("workers") or 1)  # as many batches come at once
        waits = [fmean(one[2] for one in fetches[at : at + size]) for at in range(0, len(fetches), size)]
        third = len(waits) // 3
        if 3 * third < GROWN_LEAST:
            return None
        first, middle, last = (median(waits[third * part :][:third]) for part in range(3))
        more = middle > GROWN_MIDDLE * first and last > max(GROWN_MIDDLE * middle, GROWN * first)
        if not more or last - first < GROWN_STEP * self.step_s:
            return None
        return (first, last) if (slope(list(enumerate(waits)))["low"] or 0) > 0 else None

    def slow(self) -> Cause | None:
        """Find a few slow samples that hold up all others."""
        bodies = self.signs.bodies
        if len(self.signs.fetches) < GROWN_LEAST or not bodies:
            return None
        excess = []
        for kind in (False, True):
            waits = [seconds for *_, seconds, stocked in self.signs.fetches if stocked is kind]
            usual = median(waits) if waits else 0.0
            excess += [seconds - usual for seconds in waits]
        usual = median(bodies)
        least = max(LATE_S, LATE_STEPS * usual)
        late = [seconds for seconds in excess if seconds > least]
        of_bodies = sum(seconds - usual for seconds in bodies if seconds - usual > least)
        whole = sum(bodies) + sum(seconds for *_, seconds, _ in self.signs.fetches)
        share, of_waits = sum(late) / whole, sum(late) / max(1e-9, sum(one for one in excess if one > 0))
        most = min(LATE_MOST, LATE_OF_ROUND / max(1, self.loader.get("workers") or 1))
        few = LATE_FETCHES <= len(late) <= max(LATE_FETCHES, most * len(excess))
        if not few or share < LATE_SHARE or of_waits < LATE_OF_WAITS or of_bodies > LATE_BODIES * sum(late):
            return None
        return Cause(
            "slow sample",
            f"{len(late)} of {len(excess):,} batches came {median(late):.2g} s late, {percent(share)} of "
            "the time: one slow sample blocks its batch, and all after it.",
            {"late_batches": len(late), "median_seconds_late": median(late), "share_of_time": share},
            "Find the samples that take longest (time `dataset[i]`) and store them smaller, or raise "
            "`prefetch_factor` to cover them; `DataLoader(..., in_order=False)` lets others pass.",
            1 / (1 - share),
        )

    def start(self) -> Cause | None:
        """Find slow starts of epochs, the first one left out."""
        starts, epochs = self.found["epoch_start_seconds"][1:], self.signs.epoch_s[1:]
        count = min(len(starts), len(epochs))
        if not count or not self.steady:
            return None
        usual = median(seconds for *_, seconds in self.steady)
        first = median(starts[:count])
        share = max(0.0, first - usual) / max(median(epochs[:count]), first)
        restarts = bool(self.loader.get("workers")) and not self.loader.get("persistent")
        if share < (START if restarts else START_PERSISTENT):
            return None
        why = "workers restart each epoch" if restarts else "the queue is empty at each start"
        change = (
            "Use `DataLoader(..., persistent_workers=True)`."
            if restarts and self.loader["persistent"] is False
            else "Make epochs longer (repeat the sampler), or what `__iter__` does at their start shorter."
        )
        return Cause(
            "epoch start",
            f"The first batch of an epoch takes {first:.2g} s, {percent(share)} of the epoch: {why}.",
            {"first_batch_seconds": first, "share_of_epoch": share, "epochs": count},
            change,
            1 / (1 - share),
        )

    def python(self) -> Cause | None:
        """Find steps in which Python code itself is busy, rather than torch's operations or a wait."""
        held = self.signs.knocks and self.signs.knocks.share()
        if held is None or not self.signs.worked:
            return None
        cpu = sum(one for _, one in self.signs.worked) / sum(one for one, _ in self.signs.worked)
        if held < PYTHON_HELD or cpu < PYTHON_CPU:
            return None
        line, _ = max(self.signs.knocks.lines.items(), key=lambda one: one[1])
        return Cause(
            "python",
            f"Python code held the interpreter in {percent(held)} of looks at a step, most often at {line}.",
            {"share_of_step": held, "cpu_share_of_step": cpu},
            "Replace Python loops in the step by operations on whole tensors, or move them out of it.",
            1 / (1 - held * self.au) if held * self.au < 1 else None,
        )

    def memory(self) -> Cause | None:
        """Find memory of this process and its workers that grows with the steps."""
        slope, looks = self.found["growth"]["host_bytes_per_step"], self.signs.looks
        late = looks[len(looks) // 3 :]
        if (slope["low"] or 0) <= 0 or late[-1].step - late[0].step < MEMORY_STEPS:
            return None
        grown, half = late[-1].memory - late[0].memory, late[len(late) // 2].memory
        steady = min(half - late[0].memory, late[-1].memory - half) > grown / 4  # not once
        if grown < max(MEMORY_BYTES, MEMORY_SHARE * late[0].memory) or not steady:
            return None
        left = free_host_bytes() / slope["value"]
        return Cause(
            "memory",
            f"Memory of the training and its workers grows by {slope['value'] / 2**20:.3g} MiB a step ("
            f"{slope['low'] / 2**20:.3g} to {slope['high'] / 2**20:.3g}). At this rate it is used up "
            f"after {left:,.0f} more steps.",
            {
                "bytes_per_step": slope["value"],
                "low": slope["low"],
                "high": slope["high"],
                "steps_left": left,
            },
            "Look for a list that each step or sample extends, such as losses kept with their graphs "
            "(`loss.item()`, `loss.detach()`).",
        )

    def shared_memory(self) -> Cause | None:
        """Find a /dev/shm that full queues of batches could fill."""
        ahead, size = self.loader.get("ahead") or 0, self.loader.get("host_bytes") or 0
        if not ahead or not SHARED_MEMORY.is_dir():
            return None
        whole = shutil.disk_usage(SHARED_MEMORY).total
        if ahead * size < SHM * whole:
            return None
        return Cause(
            "shared memory",
            f"Full queues of {ahead} batches take {ahead * size / 2**20:,.0f} MiB of the "
            f"{whole / 2**20:,.0f} MiB of {SHARED_MEMORY}: workers may die with a bus error.",
            {"queue_bytes": ahead * size, "shm_bytes": whole},
            "Give the container more (`docker run --shm-size=8g`), or lower `prefetch_factor`.",
        )

    def copy(self) -> Cause | None:
        """Find a copy to the GPU that is slow, or comes from memory that is not pinned."""
        size = self.loader.get("host_bytes") or 0
        if self.device != "cuda" or not size:
            return None
        copied, pinned = self.found["copy_seconds"], self.found["copy_seconds_pinned"]
        seen = {"batch_bytes": size}
        if copied is not None:
            seen |= {"copy_seconds": copied, "copy_seconds_pinned": pinned}
        if not self.loader.get("pinned"):
            saved = max(0.0, (copied or 0.0) - (pinned or 0.0))
            if copied is not None and saved < (1 - SURE) * self.now_s:
                return None
            return Cause(
                "pinning",
                f"Batches of {size / 2**20:.3g} MiB come in pageable memory: the host waits for each copy.",
                seen,
                "Use `DataLoader(..., pin_memory=True)` and `.to(device, non_blocking=True)`.",
                self.now_s / max(1e-9, self.now_s - saved) if saved < self.now_s and copied else None,
            )
        if copied is None or copied < COPIED * self.now_s:
            return None
        return Cause(
            "copy",
            f"The copy of a batch takes {ms(copied)} of a step's {ms(self.now_s)}, even from pinned memory.",
            seen,
            "Copy uint8 and make floats on the GPU, or copy the next batch in a stream of its own.",
            self.now_s / max(1e-9, self.now_s - copied),
        )


def diagnosis(found: Mapping[str, Any], signs: Signs, device: str) -> dict[str, Any]:
    """Return the causes of a result, and its stages with the gain of leaving out each, as in watch.json."""
    one, stages = Diagnosis(found, signs, device), found["stages"]
    named = [asdict(cause) for cause in one.named()]
    return {"causes": named, "stages": stages and {**stages, "at_most": one.worth()}}


def in_words(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the first three changes, one a line, with the most that each could gain."""
    lines = []
    for one in found[:3]:
        brings = "" if one["at_most"] is None else f" (at most {times(one['at_most'])} as fast)"
        lines.append(f"{one['name']}: {one['change'].removesuffix('.')}{brings}.")
    return lines
