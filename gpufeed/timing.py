"""Timers that mean the same on every device: device events on CUDA, the host's clock elsewhere.

An event is recorded without stopping anything; its time may be read only after `synchronise`.
Source: CUDA Runtime API, event management (resolution about 0.5 us).
"""

import time
from dataclasses import dataclass

import torch


class Mark:
    """A point in time on a device's current stream (CUDA), or on the host (any other device)."""

    __slots__ = ("event", "host_s")

    def __init__(self, device: torch.device, stream: "torch.cuda.Stream | None" = None):
        self.event = None
        self.host_s = time.perf_counter()
        if device.type == "cuda":
            self.event = torch.cuda.Event(enable_timing=True)
            self.event.record(stream if stream is not None else torch.cuda.current_stream(device))

    def ms_until(self, later: "Mark") -> float:
        """Milliseconds from this mark to a later one; both must have completed on the device."""
        if self.event is not None and later.event is not None:
            return self.event.elapsed_time(later.event)
        return (later.host_s - self.host_s) * 1e3


@dataclass(frozen=True)
class Span:
    """From one mark to another."""

    start: Mark
    end: Mark

    def ms(self) -> float:
        """Its length in milliseconds; call after the device has passed its end."""
        return self.start.ms_until(self.end)


def synchronise(device: torch.device) -> None:
    """Waits until the device has done all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
