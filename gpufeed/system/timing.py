"""Timers for every device: device events on CUDA, the host's clock elsewhere.

Recording an event does not stop the device; its time may be read only after `synchronise`. Source: CUDA
Runtime API, event management (resolution about 0.5 us).
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch


class Mark:
    """A point in time on a device's current stream (CUDA), or on the host (other devices)."""

    __slots__ = ("event", "host_s")

    def __init__(self, device: torch.device):
        self.event = None
        self.host_s = time.perf_counter()
        if device.type == "cuda":
            self.event = torch.cuda.Event(enable_timing=True)
            self.event.record(torch.cuda.current_stream(device))

    def ms_until(self, later: "Mark") -> float:
        """Return the milliseconds to a later mark; the device must have passed both."""
        if self.event is not None and later.event is not None:
            return self.event.elapsed_time(later.event)
        return (later.host_s - self.host_s) * 1e3


@dataclass(frozen=True)
class Span:
    """The time between two marks."""

    start: Mark
    end: Mark

    def ms(self) -> float:
        """Return its length in milliseconds; the device must have passed its end."""
        return self.start.ms_until(self.end)


def synchronise(device: torch.device) -> None:
    """Wait until the device has done all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


@dataclass(frozen=True)
class StepMarks:
    """The marks of one step; call `row` once the device has passed its end.

    train spans augment, forward, backward and optimiser on the compute stream. previous is the end of the
    step before, or the start of the epoch: from there to train's end is the step's total.
    """

    epoch: int
    step: int
    images: int
    previous: Mark
    train: Span
    load_ms: float
    transfer: Span | None

    def row(self, loss: float) -> dict[str, int | float]:
        """Return the step as a row of the steps table (STEP_COLUMNS), times in milliseconds."""
        train_ms, total_ms = self.train.ms(), Span(self.previous, self.train.end).ms()
        return {
            "epoch": self.epoch,
            "step": self.step,
            "images": self.images,
            "load_ms": self.load_ms,
            "transfer_ms": self.transfer.ms() if self.transfer else 0.0,
            "train_ms": train_ms,
            "total_ms": total_ms,
            "wait_ms": max(0.0, total_ms - train_ms),
            "loss": loss,
        }


# epoch counts from 0; step counts from 0 over all epochs
STEP_COLUMNS = {
    "epoch": "int64",
    "step": "int64",
    "images": "int64",
    "load_ms": "float64",
    "transfer_ms": "float64",
    "train_ms": "float64",
    "total_ms": "float64",
    "wait_ms": "float64",
    "loss": "float64",
}
SUMMARISED = ("load_ms", "transfer_ms", "train_ms", "total_ms", "wait_ms")
SHORT_WARMUP = 3  # steps


def warmup(epochs: Sequence[Mapping], batches_in_epoch: int, ahead: int = 0) -> dict[str, int | str]:
    """Return how many first steps the statistics leave out, and the rule: {"steps": ..., "policy": ...}.

    The first epoch if at least two are complete, else the first three steps, but never all steps. ahead:
    batches that worker processes prefetch, which all arrive almost at once at the start. That many steps are
    left out then, at most half of all.
    """
    total = sum(epoch["steps"] for epoch in epochs)
    if sum(epoch["steps"] == batches_in_epoch for epoch in epochs) >= 2:
        return {"steps": epochs[0]["steps"], "policy": "the first epoch is left out"}
    if ahead > SHORT_WARMUP and total > 2 * SHORT_WARMUP:
        policy = "as many first steps are left out as batches were made ahead, half of all at most"
        return {"steps": min(ahead, total // 2), "policy": policy}
    left_out = min(SHORT_WARMUP, total - 1)
    return {"steps": left_out, "policy": f"the first {SHORT_WARMUP} steps are left out, never all of them"}


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return the `summary` of the record schema of at least one value, in the unit of the values."""
    values = np.asarray(values, dtype=np.float64)  # (n,)
    return {
        "median": float(np.median(values)),
        "mean": float(values.mean()),
        "std": float(values.std(ddof=1)) if len(values) > 1 else 0.0,
        "p05": float(np.percentile(values, 5)),
        "p95": float(np.percentile(values, 95)),
        "min": float(values.min()),
        "max": float(values.max()),
    }


def step_statistics(rows: Sequence[Mapping]) -> dict:
    """Return the `steps` of a record: the number of rows and a summary of each time."""
    return {"n": len(rows), **{name: summary([row[name] for row in rows]) for name in SUMMARISED}}


def throughput(rows: Sequence[Mapping]) -> dict[str, float]:
    """Return the `throughput` of a record over these rows: images, seconds, images/s and wait_share."""
    images = sum(row["images"] for row in rows)
    total_ms = sum(row["total_ms"] for row in rows)
    wait_ms = sum(row["wait_ms"] for row in rows)
    return {
        "images": images,
        "seconds": total_ms / 1e3,
        "images_per_s": images / (total_ms / 1e3),
        "wait_share": min(1.0, wait_ms / total_ms),
    }
