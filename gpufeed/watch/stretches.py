"""Stretches of a training: which steps are measured end to end, which from memory, and how long they took.

A burst of K batches is held in memory before it begins, so that its steps wait for no input. Stretches follow
in the order end to end, burst, burst, end to end, so that a drift of the speed affects both kinds alike.
"""

import ctypes
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import distributed

from gpufeed.core.quantities import plural
from gpufeed.watch.signs import Signs

END, ALONE = "end_to_end", "compute_only"
ORDER = (END, ALONE, ALONE, END)
CHECKED = 16  # steps of the first epoch whose fetches are checked before a batch is held
SHORTEST = 4  # steps of a burst
WITHOUT_BURSTS = 32  # steps of an end-to-end stretch
SETTLE = 16  # fewest after a burst, where the device was waited for, or ranks have a queue that is unknown
LONGEST_SETTLE = 64  # the same with one process; a fetch that waits ends it earlier
OFTEN, APART = 24, 8  # after so many pairs, the steps of so many lie between two and the next two
WAITS = 0.1  # of a step's time: a fetch that takes longer has found an empty queue
# a step so many times as long as the stretch's median, and so long, contains an evaluation or a checkpoint
PAUSE, PAUSE_S = 10, 0.05
MOST = 1000  # the latest stretches to keep; their statistics at the end of each epoch take 0.1 s

Queue = tuple[int, int] | None  # numbers of a loader's worker processes and of prefetched batches
# batches in a loader's queue, and those that its workers are making; None if unknown
Ready = tuple[int, int] | None
_FREE: dict[int, list[torch.cuda.Event]] = {}


def take_event(device: torch.device) -> torch.cuda.Event:
    """Return a free event for this device.

    Events are reused and never destroyed: a forked process that destroys one aborts, since CUDA cannot run
    there, and its garbage collector may find those of any watch that has ended.
    """
    free = _FREE.setdefault(device.index, [])
    if free:
        return free.pop()
    event = torch.cuda.Event(enable_timing=True)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(event))
    return event


def group() -> tuple[int, int]:
    """Return this process's rank and the number of ranks, from torch.distributed or torchrun."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


class Clock:
    """Marks points in time: events on the current stream of a CUDA device, else seconds of the host's
    clock.
    """

    def __init__(self, device: torch.device):
        self.device, self.cuda = device, device.type == "cuda"

    def mark(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        event = take_event(self.device)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def idle(self) -> bool:
        """Return whether the device has done all that was asked for so far."""
        return not self.cuda or torch.cuda.current_stream(self.device).query()

    def passed(self, marks: list[Any], wait: bool) -> bool:
        """Return whether the device has passed all marks. wait: until it has."""
        for mark in marks if self.cuda else ():
            if wait:
                mark.synchronize()
            elif not mark.query():
                return False
        return True

    def seconds(self, start: Any, end: Any) -> float:
        return start.elapsed_time(end) / 1e3 if self.cuda else end - start

    def give_back(self, marks: list[Any]) -> None:
        if self.cuda:
            _FREE[self.device.index].extend(marks)


@dataclass
class Stretch:
    """Steps that are measured together.

    entered: marks when each batch is requested, and when the one after the last is. fetched: marks when each
    batch has arrived, for end-to-end stretches. ready: the loader's queue at the start. drained: the number
    of batches by which it got shorter.
    """

    kind: str
    pair: int
    first_step: int
    ready: Ready = None
    drained: int = 0
    samples: int = 0
    steps: int = 0
    entered: list[Any] = field(default_factory=list)
    fetched: list[Any] = field(default_factory=list)
    fetch_s: float = 0.0  # on the host's clock, of all fetches
    # on the host's clock, where the device idled: what this package took, all of it and between the marks
    # of a fetch, and fetches that waited
    own_s: float = 0.0
    own_in_fetch_s: float = 0.0
    waited_s: float = 0.0
    body_s: list[float] = field(default_factory=list)  # on the host's clock, of each step between fetches

    @property
    def marks(self) -> list[Any]:
        """All its marks, the last first, as the device has most often not passed that one."""
        return self.entered[::-1] + self.fetched

    def measured(self, clock: Clock) -> dict[str, Any]:
        """Return its times as a dict; the device must have passed its end."""
        seconds = clock.seconds(self.entered[0], self.entered[-1])
        hidden_s = min(self.own_s, self.waited_s)  # the loader worked meanwhile
        seconds -= max(0.0, min(self.own_s - hidden_s, seconds - sum(self.body_s)))  # clocks differ a little
        waits = [clock.seconds(*both) for both in zip(self.entered[:-1], self.fetched, strict=False)]
        steps = [clock.seconds(*both) for both in zip(self.entered[:-1], self.entered[1:], strict=True)]
        bodies = [step - wait for step, wait in zip(steps, waits, strict=True)] if waits else steps
        clock.give_back(self.marks)
        row = {name: getattr(self, name) for name in ("kind", "pair", "first_step", "steps", "samples")}
        steady_s = self.steady_s(seconds, clock.cuda) if self.kind == END else seconds
        paused = max(bodies) > max(PAUSE * median(bodies), PAUSE_S)
        wait_s = max(0.0, sum(waits) - self.own_in_fetch_s + hidden_s)
        return row | {"seconds": seconds, "steady_s": steady_s, "wait_s": wait_s, "paused": paused}

    def steady_s(self, seconds: float, ahead: bool) -> float:
        """Return the time that its steps would take if neither queue, of batches or of work, got shorter.

        During a burst the loader's queue fills, and the host queues steps faster than a GPU runs them. Both
        speed up the next stretch for a while. So batches taken out of the loader's queue are left out, and if
        the host runs ahead of the device, the host's own time counts if it is longer.
        """
        made = self.steps / (self.steps - min(self.drained, self.steps // 2))
        if not ahead:
            return seconds * made
        # the median, since a step in which the loop waits for the device takes as long as all queued work
        body_s = min(sum(self.body_s), self.steps * median(self.body_s))
        return max(seconds, (self.fetch_s + body_s) * made)


@dataclass(frozen=True)
class Sizes:
    """Steps of a burst (0: none), of an end-to-end stretch, and those left out.

    first, epoch: left out in the first epoch, and at the start of another. settle, longest: fewest and most
    left out after a burst, while the device has work from it; where batches arrive on the device, `longest`
    is also the most before a burst. unseen: the state of the loader's queue is unknown; it may be full when
    an epoch begins. until_wait: settled only once a fetch has waited. why: why there is no burst.
    """

    burst: int
    stretch: int
    first: int
    epoch: int
    settle: int
    longest: int
    unseen: bool = False
    until_wait: bool = False
    why: str | None = None


def sizes(
    burst: int,
    accumulate: int,
    length: int | None,
    fit: int,
    queue: Queue,
    seen: bool,
    ranks: int,
    on_device: bool = False,
) -> Sizes:
    """Return the sizes of all stretches.

    length: steps of an epoch. fit: batches that may be held. queue: the loader's numbers of workers and of
    prefetched batches; None if unknown. seen: whether the length of its queue can be read. on_device: whether
    batches arrive on the device. Ranks with the same numbers get the same sizes.
    """
    workers, ahead = queue or (0, 0)

    def up(steps: int, unit: int = accumulate) -> int:
        return math.ceil(steps / unit) * unit

    first = up(CHECKED if length is None else max(1, min(CHECKED, length // 4)))
    epoch = up(max(2, workers) if length is None else max(1, min(max(2, workers), length // 4)))

    def power(most: int) -> int:
        """Return the accumulation times a power of two, so that ranks with slightly different batches
        agree.
        """
        steps = accumulate
        while steps * 2 <= most:
            steps *= 2
        return steps

    third = math.inf if length is None else (length - first) // 3
    held = power(min(burst, fit, third))
    least = max(SHORTEST, 2 * accumulate)
    why = None
    if burst < 1:
        why = "no batch may be held (burst=0)"
    elif fit < least:
        why = f"only {fit} batches fit into the memory that batches may be held in"
    elif held < least:
        why = (
            f"burst={burst} is too short"
            if third >= burst
            else f"epochs of {plural(length, 'step')} are too short for a burst"
        )
    alike = power(min(WITHOUT_BURSTS, third)) if why else held
    whole = up(max(alike, ahead), math.lcm(accumulate, max(1, workers)))
    if length is not None and whole > (length - epoch) // 2:
        whole = max(accumulate, min(alike, (length - epoch) // 2 // accumulate * accumulate))
    # one process watches its queues; several use fixed numbers of steps, the same on all ranks
    unseen = not seen and (queue is None or workers > 0)
    until_wait = unseen and ranks == 1
    settle = up(workers if ranks == 1 else SETTLE if queue is None else ahead)
    settle = max(settle, up(SETTLE)) if on_device else settle  # the device was waited for
    longest = max(settle, up(LONGEST_SETTLE if until_wait else held)) if ranks == 1 else settle
    if length is not None:
        longest = min(longest, max(0, length - epoch - whole) // 2 // accumulate * accumulate)
    return Sizes(0 if why else held, whole, first, epoch, settle, longest, unseen, until_wait, why)


def drained(before: tuple[int, int], after: tuple[int, int], workers: int) -> int:
    """Return by how many batches a queue got shorter because its workers are slower than the loop.

    before, after: batches that are ready and those being made. Near the end of an epoch the queue empties
    even if the workers keep up, which they do if fewer batches than workers are being made.
    """
    shorter = before[0] - after[0]
    if after[1] < workers:
        shorter = min(shorter, after[1] - before[1])
    return max(0, shorter)


class Stretches:
    """The measurement of one training in this process: it observes each fetch, plans stretches and
    times them.
    """

    def __init__(self, accumulate: int, burst: int, device: torch.device | None):
        self.accumulate, self.burst = accumulate, burst
        self.asked = device
        self.clock: Clock | None = None
        self.sizes: Sizes | None = None
        self.between: str | None = None  # why compute-only is the time between batches, if it is
        self.on_device = False  # whether batches arrive on the device, which may make them beside steps
        self.waits = False  # whether to wait for such a device before the next fetch
        self.pid = os.getpid()
        self.rank, self.ranks = group()
        self.steps = self.epochs = self.at = 0
        self.position = 0  # in ORDER, repeated
        self.open: Stretch | None = None
        self.unread: list[Stretch] = []
        self.done: list[dict[str, Any]] = []
        self.epoch_start_seconds: list[float] = []
        self.held = {"batches": 0, "host_bytes": 0, "device_bytes": 0, "cloned": False}
        self.batch_samples: int | None = None
        self.plan: Iterator[tuple[str, float]] | None = None
        self.phase, self.until = "lead", 0.0
        self.stocked = 0  # batches held for the current or coming burst
        self.seen_length: int | None = None  # of the last full epoch
        self.ended_at = 0  # steps of the last epoch
        self.stops_at: int | None = None  # those of the last two, if these are as long
        self.step_s = 0.0  # of a step of the last bursts
        self.entered_at = self.marked_at = self.left_at = 0.0  # of the last request of a batch
        # whether the device was idle at the last mark before a fetch, and the loader's queue then
        self.idle, self.queue = False, None
        self.earliest, self.probe = 0, None  # the end of a settle phase, and a mark in it
        self.signs = Signs()
        self.deep: Any = None  # the loader, until its stages are measured
        self.stages: dict[str, Any] | None = None
        self.unstaged: str | None = None  # why the stages were not measured
        # seconds to copy a batch, unchanged and if it were pinned
        self.copied: tuple[float, float] | None = None

    @property
    def device(self) -> torch.device:
        """The device that trains: the requested one, else the current GPU once CUDA is in use, else
        the CPU.
        """
        found = self.asked
        if found is None:
            found = torch.device("cuda" if torch.cuda.is_initialized() else "cpu")
        if found.type == "cuda" and found.index is None:
            found = torch.device("cuda", torch.cuda.current_device())
        return found

    @property
    def checks(self) -> bool:
        """Whether random states are compared at this fetch, except the first of an epoch, which may
        draw a seed.
        """
        return self.between is None and self.at > 0 and self.phase in ("first", "stock")

    @property
    def kind(self) -> str:
        return END if self.between else ORDER[self.position % len(ORDER)]

    def begin_epoch(self) -> int:
        """Start a pass over the loader; return its number: an earlier pass that continues is not measured."""
        self.drop()
        self.rank, self.ranks = group()  # now, since the group may be gone when the process ends
        self.epochs += 1
        self.stops_at = self.at if self.at == self.ended_at >= SHORTEST else None
        self.ended_at = self.at
        self.at, self.plan, self.phase, self.until = 0, None, "first", 1.0
        return self.epochs

    def enter(self, length: int | None, ready: Callable[[], Ready], workers: int) -> bool:
        """Note that the next batch is requested; return whether to hold the batches of a burst now.

        ready: returns the state of the loader's queue, which so many workers fill.
        """
        if self.clock is None and self.at:
            self.clock = Clock(self.device)  # from the second step on, when training has used its device
        if self.open is not None:
            self.open.body_s.append(self.entered_at - self.left_at)
            self.mark(ready)
            self.open.own_s += self.idle * (self.marked_at - self.entered_at)
        self.waits = False
        if self.at < self.until:
            return False
        ended = self.phase
        if self.open is not None:
            self._close(ready(), workers)
        if self.plan is None:
            self.plan = self._phases(length)
        self.phase, steps = next(self.plan)
        self.until = self.at + steps
        self.waits = ended == ALONE or self.phase == "stock"
        if self.phase in (END, ALONE):
            self.open = Stretch(self.phase, self.position // 2, self.steps, ready())
        return self.phase == "stock"

    def wait_for_device(self) -> None:
        """Wait until the device has finished all its work, if it may make batches beside steps that count."""
        if self.on_device and self.clock.cuda:
            torch.cuda.synchronize(self.clock.device)

    def started(self, ready: Callable[[], Ready]) -> None:
        """Set the first mark of a stretch, after the cost of starting it, or one while it settles."""
        if self.phase == "settle" and self.ranks == 1:
            self.probe = self.clock.mark()
        if self.open is not None and not self.open.entered:
            self.mark(ready)

    def mark(self, ready: Callable[[], Ready]) -> None:
        """Set a mark of the stretch at which the next batch is requested."""
        self.idle = self.clock.idle()
        self.open.entered.append(self.clock.mark())
        self.marked_at = time.perf_counter()
        self.queue = ready() if self.open.kind == END else None

    def arrived(self, samples: int | None, fetch_s: float) -> None:
        """Note that a batch has arrived."""
        if not self.steps:
            self.batch_samples = samples
        if self.open is not None:
            self.open.steps += 1
            self.open.samples += samples or 1
            self.open.fetch_s += fetch_s
            if self.open.kind == END:
                self.open.fetched.append(self.clock.mark())
                self.open.own_in_fetch_s += self.idle * (time.perf_counter() - self.marked_at - fetch_s)
        elif (self.phase == "settle" and self.settled(fetch_s)) or (self.phase == "tail" and self.is_over):
            self.until = math.ceil((self.at + 1) / self.accumulate) * self.accumulate
        self.at += 1
        self.steps += 1

    def leave(self, fetch_s: float) -> None:
        """Note that the loop goes on, after a fetch that took so long."""
        self.left_at = time.perf_counter()
        if self.open is not None and self.idle:
            self.open.own_s += self.left_at - self.marked_at - fetch_s
            self.open.waited_s += fetch_s if self.waited(fetch_s) else 0.0

    def settled(self, fetch_s: float) -> bool:
        """Return whether all that a burst queued, batches and device work, is used up."""
        if self.probe is None:
            return False
        idle = self.clock.passed([self.probe], wait=False)  # all queued work is done
        self.clock.give_back([self.probe])
        self.probe = None
        # before the first stretch that says so nobody knows how long a step takes
        waited = not self.sizes.until_wait or fetch_s > WAITS * (self.step_s or math.inf)
        return idle and waited and self.at + 1 >= self.earliest

    def waited(self, fetch_s: float) -> bool:
        """Return whether the last fetch found no batch; if the queue is unknown, whether it was slow."""
        if self.open.kind == ALONE:
            return False
        if self.queue is not None:
            return not self.queue[0]
        return fetch_s > WAITS * (self.open.body_s[-1] if self.open.body_s else self.step_s)

    @property
    def is_over(self) -> bool:
        """Whether the device has finished the last stretch; ranks do not ask, since their devices differ."""
        last = self.unread[-1].marks if self.unread else []
        return self.ranks == 1 and self.clock.passed(last, wait=False)

    def _phases(self, length: int | None) -> Iterator[tuple[str, float]]:
        """Yield the phases of an epoch and their steps, from its second step on."""
        # the last step, after which some loops request no more
        end = math.inf if length is None else length - 1
        begins = not self.done and not self.unread
        lead = self.sizes.first if begins else self.sizes.epoch
        if lead > self.at:
            yield ("first" if begins else "lead"), lead - self.at
        if self.kind == END and self.sizes.unseen and not begins:
            yield from self._settle()
        while True:
            if self.kind == END:
                if self.at + self.sizes.stretch > end:
                    break
                yield END, self.sizes.stretch
                if self.between is None and self.position >= 2 * OFTEN and self.position % len(ORDER) == 0:
                    yield "apart", APART * (self.sizes.burst + self.sizes.stretch)
                continue
            if self.on_device and self.sizes.longest and ORDER[self.position % len(ORDER) - 1] == END:
                yield "tail", self.sizes.longest  # the device makes batches beside its last steps, too
            if self.at + self.sizes.burst > end:
                break
            yield "stock", self.accumulate  # steps that fill the device's queue of work
            counted = (self.stocked // self.accumulate - 1) * self.accumulate
            if self.between is None and counted > 0:
                yield ALONE, counted
                if self.kind == END:
                    yield from self._settle()
        yield "rest", math.inf

    def _settle(self) -> Iterator[tuple[str, float]]:
        """Yield the steps until the queues hold nothing of a pause; see `settled`."""
        if self.sizes.longest:
            self.earliest = self.at + self.sizes.settle
            yield "settle", self.sizes.longest

    def stop_bursts(self, why: str) -> None:
        """Hold no batch from now on."""
        self.between = self.between or why

    def _close(self, ready: Ready, workers: int) -> None:
        stretch, self.open = self.open, None
        if stretch.kind == ALONE or self.between:
            self.step_s = max(self.step_s, median(stretch.body_s))
        if stretch.ready and ready:
            stretch.drained = drained(stretch.ready, ready, workers)
            if stretch.kind == END and any(ready):
                self.signs.full.append(ready[0] / sum(ready))
        self.position += 1
        self.unread.append(stretch)
        self.read(wait=False)

    def drop(self) -> None:
        """Discard the current stretch."""
        if self.open is not None:
            self.clock.give_back(self.open.marks)
            self.open = None

    def read(self, wait: bool) -> None:
        """Read the times of the stretches that the device has finished. wait: until it has finished all."""
        while self.unread and self.clock.passed(self.unread[0].marks, wait):
            self.done.append(self.unread.pop(0).measured(self.clock))
            if self.done[-1]["kind"] == ALONE:
                self.step_s = self.done[-1]["seconds"] / self.done[-1]["steps"]
        del self.done[:-MOST]
