"""The tasks of the kernel benchmark, their clock, and the ceilings of the device.

Events enclose each launch, with its data flushed from the L2 cache. The ceilings are the rates of a large
matrix product and of a large copy.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

Run = Callable[[], object]
FLUSH_MIB = 256  # written between launches: several times the L2 cache of any GPU so far (H200: 60 MB)
SPIN_CYCLES = 2_000_000  # about 1 ms: the minimum that keeps the device busy while the host queues work
MOST_SPIN_S = 0.05  # work that takes longer to queue mostly waits for the device anyway
HZ = 2.5e9  # above the clock of any GPU so far
WARMUP = 3
MOST_SECONDS = 1.0  # of the launches of one row, and of its calls
FEWEST = 3
CALLS = 20
SIDE = 8192  # of the square matrices: 128 MiB each in half precision, which fills any GPU
COPIED = 2**30  # bytes read and written


class NotDone(Exception):
    """This implementation has no such work, so it gets no row."""


@dataclass(frozen=True)
class Task:
    """One row. names: its identity, such as work and implementation. make: sets the work up.

    facts: further fields that are known before the measurement. bytes: read and written; None if they do not
    matter. yardstick: moves as many bytes at full speed (YARDSTICKS). amounts: rate -> amount of one run, so
    that amount / milliseconds has the rate's unit.
    """

    names: Mapping[str, Any]
    make: Callable[[], Run]
    facts: Mapping[str, Any]
    bytes: int | None = None
    yardstick: str | None = None
    amounts: Mapping[str, float | None] = field(default_factory=dict)


class Clock:
    """Times work on the current stream of a CUDA device."""

    def __init__(self, device: torch.device, launches: int):
        self.launches = launches
        self.flush = torch.empty(FLUSH_MIB * 2**20, dtype=torch.uint8, device=device)

    def device_ms(self, run: Callable[[], object]) -> list[float]:
        """Return the milliseconds of each launch on the device, with fewer launches if they are slow.

        The time includes the host's if queueing the work takes more than MOST_SPIN_S.
        """
        queued_s, whole_s = self._seconds(run)  # includes one-time work
        for _ in range(WARMUP if whole_s * WARMUP < MOST_SECONDS else 1):
            queued_s, whole_s = self._seconds(run)
        # many kernels take the host longer to queue than the device to run: spin to hide that
        spin = max(SPIN_CYCLES, int(min(2 * queued_s, MOST_SPIN_S) * HZ))
        return self._time(run, launches_in_time(self.launches, whole_s), spin)

    def _seconds(self, run: Callable[[], object]) -> tuple[float, float]:
        """Return the seconds until the work was queued, and until it was done."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        queued_s = time.perf_counter() - start
        torch.cuda.synchronize()
        return queued_s, time.perf_counter() - start

    def _time(self, run: Callable[[], object], launches: int, spin: int) -> list[float]:
        marks = []
        for _ in range(launches):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.flush.zero_()
            torch.cuda._sleep(spin)
            start.record()
            run()
            end.record()
            marks.append((start, end))
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in marks]

    def call_ms(self, run: Callable[[], object]) -> float:
        """Return milliseconds per call of an idle host: for small batches, the cost of launching."""
        whole_s = self._seconds(run)[1]
        if whole_s > MOST_SECONDS:
            return whole_s * 1e3
        calls = launches_in_time(CALLS, whole_s)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            run()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e3 / calls


def launches_in_time(most: int, each_s: float) -> int:
    """Return how many launches of this duration fit into MOST_SECONDS."""
    return max(FEWEST, min(most, int(MOST_SECONDS / max(each_s, 1e-6))))


def copy_of(size: int, device: torch.device) -> Callable[[], object]:
    """Return a device-to-device copy that moves `size` bytes: half read, half written."""
    source = torch.empty(max(1, size // 2), dtype=torch.uint8, device=device)
    source.random_()
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def triad_of(size: int, device: torch.device) -> Callable[[], object]:
    """Return a sum of two arrays into a third that moves `size` bytes: two thirds read, one written."""
    first = torch.rand(max(1, size // 12), device=device)  # float32: 16 bytes an access
    second, target = torch.rand_like(first), torch.empty_like(first)
    return lambda: torch.add(first, second, out=target)


YARDSTICKS = {"copy": copy_of, "triad": triad_of}


class Yardsticks:
    """Times of copies and triads; each size is measured once."""

    def __init__(self, device: torch.device, clock: Clock):
        self.device, self.clock = device, clock
        self.known: dict[tuple[str, int], float] = {}

    def ms(self, name: str, size: int) -> float:
        """Return the median milliseconds of the yardstick that moves `size` bytes."""
        if (name, size) not in self.known:
            times = self.clock.device_ms(YARDSTICKS[name](size, self.device))
            self.known[name, size] = statistics.median(times)
        return self.known[name, size]


def device_ceilings(device: torch.device, clock: Clock, yardsticks: Yardsticks, dtype: torch.dtype) -> dict:
    """Return the field `ceilings` of a kernel benchmark: medians for random values in `dtype`."""
    generator = torch.Generator(device).manual_seed(0)
    a, b = (
        torch.randn(SIDE, SIDE, dtype=torch.float32, device=device, generator=generator).to(dtype)
        for _ in range(2)
    )
    out = torch.empty_like(a)
    product_ms = statistics.median(clock.device_ms(lambda: torch.mm(a, b, out=out)))
    return {
        "side": SIDE,
        "tflop_per_s": 2 * SIDE**3 / product_ms / 1e9,
        "copied_bytes": COPIED,
        "gb_per_s": COPIED / yardsticks.ms("copy", COPIED) / 1e6,
    }
