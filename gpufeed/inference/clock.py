"""How long one call takes, and how many images a second many calls do."""

import time

import numpy as np
import torch

from gpufeed.inference.base import Run
from gpufeed.timing import Mark, synchronise

WARMUP = 3  # calls before the timed ones, in each round
MOST_SECONDS = 2.0  # of the timed single calls of a round


def latencies(run: Run, images: torch.Tensor, calls: int) -> tuple[list[float], list[float] | None]:
    """Milliseconds of single calls, fewer of slow ones: on the host's clock until the device is done, and on
    the device's from the first of its work to the last (None without CUDA).
    """
    device = images.device
    warm_up(run, images)
    host, marks, deadline = [], [], time.perf_counter() + MOST_SECONDS
    while len(host) < calls and (not host or time.perf_counter() < deadline):
        began = time.perf_counter()
        start = Mark(device)
        run(images)
        end = Mark(device)
        synchronise(device)
        host.append((time.perf_counter() - began) * 1e3)
        marks.append((start, end))
    if device.type != "cuda":
        return host, None
    return host, [start.ms_until(end) for start, end in marks]


def images_per_s(run: Run, images: torch.Tensor, seconds: float) -> float:
    """Images a second over about so many seconds of calls that are queued one after another; at least one."""
    each_s = warm_up(run, images)
    calls = max(1, round(seconds / each_s))
    began = time.perf_counter()
    for _ in range(calls):
        run(images)
    synchronise(images.device)
    return calls * len(images) / (time.perf_counter() - began)


def warm_up(run: Run, images: torch.Tensor) -> float:
    """Seconds that the last of a few calls took; one that takes a second is made once."""
    each_s = 0.0
    for _ in range(WARMUP):
        synchronise(images.device)
        began = time.perf_counter()
        run(images)
        synchronise(images.device)
        each_s = time.perf_counter() - began
        if each_s > MOST_SECONDS / 2:
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
