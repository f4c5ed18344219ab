"""How long one call takes, and how many images a second many calls do."""

import time
from collections.abc import Callable

import numpy as np
import torch

from gpufeed.benchmarks.inference.backend import Run
from gpufeed.system.timing import Mark, synchronise

WARMUP = 3  # calls before the timed ones, in each round
MOST_SECONDS = 2.0  # of the timed single calls of a round, by each clock
LONG_S = 1.0  # a call that takes longer needs no warming up


def latencies(run: Run, images: torch.Tensor, calls: int) -> tuple[list[float], list[float] | None]:
    """Milliseconds of single calls, fewer of slow ones: on the host's clock until the device is done, and on
    the device's from the first of its work to the last (None without CUDA).

    Each clock has calls of its own, since to mark a time on the device takes the host some microseconds.
    """
    device = images.device
    warm_up(run, images)

    def on_host() -> float:
        began = time.perf_counter()
        run(images)
        synchronise(device)
        return (time.perf_counter() - began) * 1e3

    def on_device() -> float:
        start = Mark(device)
        run(images)
        end = Mark(device)
        synchronise(device)
        return start.ms_until(end)

    return again(on_host, calls), again(on_device, calls) if device.type == "cuda" else None


def again(once: Callable[[], float], calls: int) -> list[float]:
    """What so many calls gave, or fewer in MOST_SECONDS, but at least one."""
    found, deadline = [], time.perf_counter() + MOST_SECONDS
    while len(found) < calls and (not found or time.perf_counter() < deadline):
        found.append(once())
    return found


def images_per_s(run: Run, images: torch.Tensor, seconds: float) -> float:
    """Images a second over about so many seconds of calls that are queued one after another.

    Of a call that takes a second the one that would have warmed it up is enough.
    """
    each_s = warm_up(run, images)
    if each_s > LONG_S:
        return len(images) / each_s
    calls = max(1, round(seconds / each_s))
    began = time.perf_counter()
    for _ in range(calls):
        run(images)
    synchronise(images.device)
    return calls * len(images) / (time.perf_counter() - began)


def warm_up(run: Run, images: torch.Tensor) -> float:
    """Seconds that the last of a few calls took; one that takes longer than LONG_S is made once."""
    each_s = 0.0
    for _ in range(WARMUP):
        synchronise(images.device)
        began = time.perf_counter()
        run(images)
        synchronise(images.device)
        each_s = time.perf_counter() - began
        if each_s > LONG_S:
            break
    return max(each_s, 1e-6)


def latency(host: list[float], device: list[float] | None, batch: int) -> dict:
    """The `latency` of a row, in milliseconds."""
    return {
        "batch": batch,
        "n": len(host),
        "host_ms": quantiles(host),
        "device_ms": quantiles(device) if device is not None else None,
    }


def quantiles(values: list[float]) -> dict[str, float]:
    """Median and the ends that a tenth and a hundredth of the calls go beyond."""
    median, p90, p99 = (float(value) for value in np.percentile(values, (50, 90, 99)))
    return {"median": median, "p90": p90, "p99": p99}
