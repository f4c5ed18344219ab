"""One row of the inference benchmark: a prepared backend, the times of its calls, and its throughput."""

import gc
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
import torch

from gpufeed.benchmarks.inference.backend import Ready, Run, Setting
from gpufeed.core.errors import GpufeedError, Skip, first_line, one_line
from gpufeed.core.registry import fetch
from gpufeed.system.timing import Mark, synchronise

WARMUP = 3  # calls before the timed ones, in each round
MOST_SECONDS = 2.0  # of the timed single calls of a round, by each clock
LONG_S = 1.0  # a longer call needs no warm-up
MIB = 2**20
log = logging.getLogger("gpufeed")


def latencies(run: Run, images: torch.Tensor, calls: int) -> tuple[list[float], list[float] | None]:
    """Return milliseconds of single calls, by the host's clock and by the device's (None without CUDA).

    The host's clock stops when the device is done. The device's runs from the first of its work to the last.
    Each clock has its own calls, since recording an event takes the host some microseconds. Slow models get
    fewer calls.
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

    return repeated_calls(on_host, calls), repeated_calls(on_device, calls) if device.type == "cuda" else None


def repeated_calls(once: Callable[[], float], calls: int) -> list[float]:
    """Return the results of up to `calls` calls in MOST_SECONDS, but of at least one."""
    found, deadline = [], time.perf_counter() + MOST_SECONDS
    while len(found) < calls and (not found or time.perf_counter() < deadline):
        found.append(once())
    return found


def images_per_s(run: Run, images: torch.Tensor, seconds: float) -> float:
    """Return images/s over about this many seconds of queued calls.

    For a call longer than LONG_S, the warm-up call is the measurement.
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
    """Return the seconds of the last of a few calls; a call longer than LONG_S is made once."""
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


def latency(host: list[float], device: list[float] | None) -> dict:
    """Return the `latency` of a row, in milliseconds."""
    return {
        "batch": 1,
        "n": len(host),
        "host_ms": quantiles(host),
        "device_ms": quantiles(device) if device is not None else None,
    }


def quantiles(values: list[float]) -> dict[str, float]:
    """Return the median and the 90th and 99th percentiles."""
    median, p90, p99 = (float(value) for value in np.percentile(values, (50, 90, 99)))
    return {"median": median, "p90": p90, "p99": p99}


@dataclass
class Row:
    """What is known so far. ready: the backend prepared for the present batch; None if it has stopped.

    A row that is skipped or failed is not tried again; its earlier measurements stay.
    """

    backend: str
    precision: str
    status: str = "done"
    sentence: str | None = None
    ready: Ready | None = None
    bytes: int | None = None
    note: str | None = None
    layers: dict[str, int] | None = None
    peak_gpu_mib: dict[int, float] = field(default_factory=dict)  # by batch, as are the next two
    setup_s: dict[int, float] = field(default_factory=dict)
    rates: dict[int, list[float]] = field(default_factory=dict)
    host_ms: list[float] = field(default_factory=list)
    device_ms: list[float] | None = None
    predicted: list[torch.Tensor] = field(default_factory=list)  # int64, of the evaluation split

    @property
    def name(self) -> str:
        return f"{self.backend} {self.precision}"

    def prepare(self, setting: Setting) -> None:
        """Prepare the backend for the setting's batch and run it once, unless the row has stopped."""
        if self.status != "done":
            return
        device, batch = setting.device, len(setting.images)
        before = allocated(device)
        synchronise(device)
        began = time.perf_counter()
        try:
            ready = fetch("backend", self.backend)(setting)
            logits = ready.run(setting.images)
            synchronise(device)
            check(logits, setting)
        except Exception as error:
            self.stop(error, batch)
            return
        self.setup_s[batch] = time.perf_counter() - began
        if device.type == "cuda":
            self.peak_gpu_mib[batch] = (torch.cuda.max_memory_allocated(device) - before) / MIB
        self.ready, self.bytes, self.note, self.layers = ready, ready.bytes, ready.note, ready.layers
        log.info("%s, batch %d: set up in %.1f s", self.name, batch, self.setup_s[batch])

    def stop(self, error: Exception, batch: int) -> None:
        """Record why the row has stopped."""
        self.release()
        if isinstance(error, Skip):
            self.status, self.sentence = "skipped", str(error)
            log.info("%s skipped: %s", self.name, error)
        else:
            log.exception("%s failed", self.name, exc_info=error)
            what = one_line(error)
            if isinstance(error, torch.OutOfMemoryError):
                what = f"CUDA ran out of memory: {first_line(error)}"
            self.status, self.sentence = "failed", f"At batch {batch}: {what}"

    def release(self) -> None:
        """Free what was prepared."""
        self.ready = None


def allocated(device: torch.device) -> int:
    """Return the bytes that torch has allocated on the GPU, and reset its peak; 0 elsewhere."""
    if device.type != "cuda":
        return 0
    gc.collect()  # models of the batch before may be in reference cycles
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def check(logits: torch.Tensor, setting: Setting) -> None:
    """Raise GpufeedError unless logits are finite, float32, on the device and of the right shape."""
    shape = (len(setting.images), len(setting.saved.classes))
    if tuple(logits.shape) != shape or logits.dtype != torch.float32 or logits.device != setting.device:
        raise GpufeedError(
            f"{logits.dtype} {tuple(logits.shape)} on {logits.device}",
            f"torch.float32 {shape} on {setting.device}",
            "do not use this backend here, and report it",
        )
    if not torch.isfinite(logits).all():
        raise GpufeedError("logits that are not finite", "finite ones", "take another precision")


def row_fields(row: Row, labels: torch.Tensor, others: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Return the row of the document. labels: int64, of the evaluation split.

    others: the predictions of the eager rows fp32 and bf16, if they are done.
    """
    predicted = torch.cat(row.predicted) if row.predicted else None
    n, right = len(labels), None
    accuracy: dict[str, Any] = dict.fromkeys(
        ("images", "correct", "top1", "agreement", "over_fp32", "over_bf16")
    )
    if predicted is not None and len(predicted) == n:
        right = int((predicted == labels).sum())
        accuracy |= {"images": n, "correct": right, "top1": right / n}
        if "fp32" in others:
            accuracy["agreement"] = float((predicted == others["fp32"]).double().mean())
        for name, answers in others.items():
            accuracy[f"over_{name}"] = (right - int((answers == labels).sum())) / n
    return {
        "backend": row.backend,
        "precision": row.precision,
        "status": row.status,
        "sentence": row.sentence,
        "note": row.note,
        "bytes": row.bytes,
        "layers": row.layers,
        **accuracy,
        "latency": latency(row.host_ms, row.device_ms) if row.host_ms else None,
        "throughput": [
            {
                "batch": batch,
                "n": len(rates),
                "images_per_s": {"median": median(rates), "min": min(rates), "max": max(rates)},
            }
            for batch, rates in sorted(row.rates.items())
        ],
        "setup": [
            {"batch": batch, "seconds": seconds, "peak_gpu_mib": row.peak_gpu_mib.get(batch)}
            for batch, seconds in sorted(row.setup_s.items())
        ],
    }
