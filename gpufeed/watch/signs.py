"""Evidence of causes on the host while a loop trains: fetches, workers' CPU time, memory, the GIL."""

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from gpufeed.system.statistics import summarise

MOST = 4000  # the latest fetches, and steps, to keep at least
MOST_POINTS = 400  # of a slope; more points are thinned out evenly
LOOK_S, LOOK_SHARE = 0.1, 0.003  # seconds between two looks at the processes, and their most share of time
FEW_BATCHES = 8  # fewest for a CPU time, which is counted in hundredths of a second
KNOCK_S, KNOCKS = 0.02, 100  # seconds between two requests of the GIL, and their number
FETCHING = 0.1  # share of the time in fetches below which they do not matter
CPU_EVERY = 7  # of so many steps the CPU time of one is read: reading costs a system call
GOLDEN = (5**0.5 - 1) / 2  # its multiples modulo 1 are spread evenly, also those of each batch of an epoch
KNOCK_FROM = 16  # first step to look at: those before compile, allocate and choose algorithms


@dataclass(frozen=True)
class Look:
    """Readings of the processes at a step. pids: of the workers. cpu_s: of all workers together.

    delay_s: in which workers were ready to run but had no core; None if the system does not report it.
    memory: bytes of this process and the workers, without shared pages.
    """

    step: int
    fetched: int
    seconds: float
    pids: tuple[int, ...]
    cpu_s: float
    delay_s: float | None
    memory: int


@dataclass
class Signs:
    """The evidence, kept by the measuring process.

    fetches: step, step of its epoch, seconds, and whether it was to be held, for each batch of the loader
    except the first of an epoch. bodies: seconds between two fetches. worked: seconds and CPU seconds of this
    thread between two fetches, of one in CPU_EVERY.
    """

    fetches: list[tuple[int, int, float, bool]] = field(default_factory=list)
    bodies: list[float] = field(default_factory=list)
    worked: list[tuple[float, float]] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    epoch_s: list[float] = field(default_factory=list)  # from an epoch's first request to its last step
    full: list[float] = field(default_factory=list)  # share of the queue that was ready, at ends of stretches
    fetched: int = 0
    in_body: bool = False
    knocks: "Knocks | None" = None
    began: float = 0.0  # when the epoch began
    left: tuple[float, float | None] | None = None
    look_at: float = 0.0
    seen: dict[int, psutil.Process] = field(default_factory=dict)
    loader: dict[str, Any] = field(default_factory=dict)  # settings of the loader

    def end_epoch(self) -> None:
        if self.left is not None:
            self.epoch_s.append(self.left[0] - self.began)
        self.left, self.in_body = None, False

    def enter(self, step: int, workers: Sequence[Any]) -> None:
        """Note that a step ends and the next batch is requested."""
        self.in_body = False
        now = time.perf_counter()
        if self.left is not None:
            left, cpu_s = self.left
            self.bodies.append(now - left)
            if cpu_s is not None:
                self.worked.append((now - left, time.thread_time() - cpu_s))
            for kept, most in ((self.bodies, MOST), (self.worked, MOST // CPU_EVERY)):
                if len(kept) > 2 * most:
                    del kept[:most]
        if now >= self.look_at:
            self.look(step, workers)
        if step == KNOCK_FROM:
            self.knocks = Knocks(self)

    def leave(self) -> None:
        """Note that a step begins, as its batch has arrived."""
        reads = self.fetched * GOLDEN % 1 < 1 / CPU_EVERY
        self.left = time.perf_counter(), time.thread_time() if reads else None
        self.in_body = True

    def fetch(self, step: int, at: int, stocked: bool, seconds: float) -> None:
        """Note that the loader has yielded a batch."""
        self.fetched += 1
        if at:
            self.fetches.append((step, at, seconds, stocked))
            if len(self.fetches) > 2 * MOST:
                del self.fetches[:MOST]

    def look(self, step: int, workers: Sequence[Any]) -> None:
        """Read CPU time and memory of this process and the workers, as often as that costs little."""
        began, worked = time.perf_counter(), time.thread_time()
        if self.loader.get("workers") and not workers:  # an iterator that wraps torch's, as accelerate's does
            workers = multiprocessing.active_children()
        pids = tuple(sorted(worker.pid for worker in workers))
        cpu_s, delay_s, memory = 0.0, 0.0, 0
        self.look_at = began + LOOK_S
        with suppress(psutil.Error):  # no look if a worker has ended
            for pid in (os.getpid(), *pids):
                if pid not in self.seen:
                    self.seen[pid] = psutil.Process(pid)
                used = self.seen[pid].memory_info()
                memory += used.rss - getattr(used, "shared", 0)
                if pid in pids:
                    cpu_s += sum(self.seen[pid].cpu_times()[:2])
                    delay_s = None if delay_s is None or (more := delay(pid)) is None else delay_s + more
            self.add(Look(step, self.fetched, began, pids, cpu_s, delay_s if pids else None, memory))
        self.look_at = began + max(LOOK_S, (time.thread_time() - worked) / LOOK_SHARE)

    def add(self, look: Look) -> None:
        """Keep a look; if there are too many, drop every second one."""
        self.looks.append(look)
        if len(self.looks) > MOST:
            del self.looks[::2]

    def per_batch(self) -> tuple[float, float | None] | None:
        """Return the workers' CPU seconds for a batch, and the share of their time without a core."""
        cpu_s = delay_s = seconds = 0.0
        batches = 0
        for one, other in zip(self.looks, self.looks[1:], strict=False):
            if one.pids and one.pids == other.pids and other.fetched > one.fetched:
                cpu_s, batches = cpu_s + other.cpu_s - one.cpu_s, batches + other.fetched - one.fetched
                seconds += len(one.pids) * (other.seconds - one.seconds)
                known = None not in (delay_s, one.delay_s, other.delay_s)
                delay_s = delay_s + other.delay_s - one.delay_s if known else None
        if batches < FEW_BATCHES:
            return None
        return cpu_s / batches, None if delay_s is None else delay_s / seconds

    def growth(self) -> dict[str, dict[str, float | int | None]]:
        """Return how much memory, and the seconds of a fetch that is not held, grow with a step."""
        looks = self.looks[len(self.looks) // 3 :]  # caches and allocators fill first
        waits = [(step, seconds) for step, _, seconds, stocked in self.fetches if not stocked]
        return {
            "host_bytes_per_step": slope([(one.step, one.memory) for one in looks]),
            "fetch_seconds_per_step": slope(waits),
        }


def delay(pid: int) -> float | None:
    """Return the seconds in which a process was ready to run but had no core, by Linux's scheduler."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def slope(points: Sequence[tuple[float, float]]) -> dict[str, float | int | None]:
    """Return the median slope and its interval over pairs of points, one of each half, in order.

    Source: Theil's incomplete method, in Hollander and Wolfe, Nonparametric Statistical Methods, 9.1.
    """
    points = points[:: max(1, len(points) // MOST_POINTS)]
    half = len(points) // 2
    x, y = np.asarray(points, dtype=float).reshape(-1, 2).T
    run = x[half : 2 * half] - x[:half]
    return with_interval("value", (y[half : 2 * half] - y[:half])[run > 0] / run[run > 0])


def with_interval(name: str, values: Iterable[float]) -> dict[str, float | int | None]:
    """Return the median of values under this name, its 95 % interval, None for fewer than six, and their
    number.
    """
    found = summarise(values)
    keys = {name: "median", "low": "ci95_low", "high": "ci95_high", "n": "n"}
    return {end: None if np.isnan(found[key]) else found[key] for end, key in keys.items()}


class Knocks:
    """A thread that requests the GIL a hundred times and notes how late it gets it.

    Python code keeps the GIL until its switch interval is over; operations of torch, reads and waits release
    it. So late requests show how much of a step is Python code. The thread ends after two seconds.
    """

    def __init__(self, signs: Signs):
        self.signs, self.of = signs, threading.get_ident()
        self.asked = self.late = self.known = self.known_late = 0
        self.lines: dict[str, int] = {}
        threading.Thread(target=self.knock, name="gpufeed.watch", daemon=True).start()

    def knock(self) -> None:
        least = sys.getswitchinterval() / 2
        for _ in range(KNOCKS):
            due = time.perf_counter() + KNOCK_S
            time.sleep(KNOCK_S)
            late, left = time.perf_counter() - due > least, self.signs.left
            if not self.signs.in_body or not left:
                continue
            self.asked, self.late = self.asked + 1, self.late + late
            if late and left[0] > due:
                continue  # a fetch may have kept the GIL
            self.known, self.known_late = self.known + 1, self.known_late + late
            if late and (frame := sys._current_frames().get(self.of)):
                line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                self.lines[line] = self.lines.get(line, 0) + 1

    def share(self) -> float | None:
        """Return the share of late requests within steps; None for too few."""
        fetches, bodies = sum(one[2] for one in self.signs.fetches), sum(self.signs.bodies)
        short = fetches < FETCHING * (fetches + bodies)  # then a fetch hardly ever keeps the GIL
        late, asked = (self.late, self.asked) if short else (self.known_late, self.known)
        return late / asked if asked >= KNOCKS // 5 and self.lines else None
