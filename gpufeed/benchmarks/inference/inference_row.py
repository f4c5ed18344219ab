"""One row of the measurement, a backend in one precision, while it is being measured."""

import gc
import logging
import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from gpufeed.benchmarks.inference.backend import Ready, Setting
from gpufeed.benchmarks.inference.call_clock import latency
from gpufeed.core.errors import GpufeedError, Skip, first_line, one_line
from gpufeed.core.registry import fetch
from gpufeed.system.timing import synchronise

log = logging.getLogger("gpufeed")
MIB = 2**20


@dataclass
class Row:
    """What is known so far. ready: the backend prepared for the present batch; None if it has stopped.

    Once a row is skipped or failed, nothing more of it is tried; what was measured before stays.
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
        """Sets the backend up for the setting's batch and runs it once, unless the row has stopped."""
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
        """Writes down why nothing more comes of the row."""
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
        """Frees what was prepared."""
        self.ready = None


def allocated(device: torch.device) -> int:
    """Bytes that torch has allocated on the GPU, from where on its peak is counted; 0 elsewhere."""
    if device.type != "cuda":
        return 0
    gc.collect()  # models of the batch before may stand in circles
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def check(logits: torch.Tensor, setting: Setting) -> None:
    """Raises GpufeedError unless there is a finite float32 value for each image and class on the device."""
    shape = (len(setting.images), len(setting.saved.classes))
    if tuple(logits.shape) != shape or logits.dtype != torch.float32 or logits.device != setting.device:
        raise GpufeedError(
            f"{logits.dtype} {tuple(logits.shape)} on {logits.device}",
            f"torch.float32 {shape} on {setting.device}",
            "do not use this backend here, and report it",
        )
    if not torch.isfinite(logits).all():
        raise GpufeedError("logits that are not finite", "finite ones", "take another precision")


def told(row: Row, labels: torch.Tensor, others: dict[str, torch.Tensor]) -> dict[str, Any]:
    """The row of the document. labels: int64, of the evaluation split. others: of the eager rows fp32 and
    bf16, as far as they are done, what they predict.
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
        "latency": latency(row.host_ms, row.device_ms, 1) if row.host_ms else None,
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
