"""Watches one training: reads counters at the ends of epochs, off the clock, and samples in a thread."""

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import psutil
import torch

from gpufeed.system.telemetry.gpu_readings import Gpu
from gpufeed.system.telemetry.process_load import (
    CoreCounters,
    Used,
    core_counters,
    own_mib,
    rss_mib,
    tree,
    used,
)

Answer = TypeVar("Answer")
log = logging.getLogger("gpufeed")

# Twelve samples in the shortest steady state of a repeat, 3 s. NVML updates its utilisations at most every
# sixth of a second, so closer samples would be equal.
PERIOD_S = 0.25
# Listing the process tree takes longer than the rest of a sample, so it is listed less often.
TREE_S = 1.0
PATIENCE_S = 5.0  # for the last sample, in case the GPU does not answer
NAME = "gpufeed-telemetry"  # of the sampling thread


@dataclass(frozen=True)
class Sample:
    """What was seen at one moment. at_s: by time.monotonic. gpu: as Gpu.sample."""

    at_s: float
    rss_mib: float
    processes: int
    gpu: dict[str, Any]


@dataclass(frozen=True)
class Reading:
    """Counters between two steps. steps, images, epochs: done so far, in whole epochs.

    epoch: whether an epoch has just ended. aside: whether the time since the last reading is not the
    training's, such as an evaluation. *_mib: memory of the host, and of the device by torch and by NVML.
    cores: of this node, None if unknown.
    """

    at_s: float
    steps: int
    images: int
    epochs: int
    epoch: bool
    aside: bool
    used: Used
    energy_j: float | None
    host_mib: float
    gpu_allocated_mib: float | None
    gpu_process_mib: float | None
    cores: CoreCounters | None = None


@dataclass
class Seen:
    """All that a watch saw. page_cache_share: of the files, at its start."""

    readings: list[Reading] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    page_cache_share: float | None = None


class Watch:
    """A context manager around a training. Its first error stops the watch, and is only logged.

    together: whether this process is one of several of the training that its parent started on this node.
    """

    def __init__(self, device: torch.device, page_cache_share: float | None = None, together: bool = False):
        self.device, self.seen = device, Seen(page_cache_share=page_cache_share)
        self.top = os.getppid() if together else os.getpid()  # root of the training's processes on this node
        self.steps = self.images = self.epochs = 0
        self.over, self.broken = threading.Event(), False
        self.thread: threading.Thread | None = None
        self.gpu: Gpu | None = None

    def __enter__(self) -> "Watch":
        self.safely(self._begin)
        return self

    def _begin(self) -> None:
        self.gpu = Gpu(self.device)
        self._read()
        self.thread = threading.Thread(target=self.safely, args=(self._sample,), name=NAME, daemon=True)
        self.thread.start()

    def __exit__(self, *exception) -> None:
        self.over.set()
        if self.thread is not None:
            self.thread.join(PATIENCE_S)
        if self.gpu is not None and not (self.thread is not None and self.thread.is_alive()):
            self.safely(self.gpu.close)

    def telling(self, on_epoch: Callable[[dict], None] | None) -> Callable[[dict], None]:
        """Return an `on_epoch` for TrainJob that reads the counters, and then calls the given one."""

        def read_and_pass_on(entry: dict) -> None:
            self.steps += entry["steps"]
            self.images += entry["images"]
            self.epochs += 1
            self.safely(lambda: self._read(epoch=True))
            if on_epoch is not None:
                on_epoch(entry)

        return read_and_pass_on

    def apart(self, judge: Callable[[], dict] | None) -> Callable[[], dict] | None:
        """Return the `judge` of TrainJob such that its time and energy do not count for the training."""
        if judge is None:
            return None

        def judged() -> dict:
            self.safely(self._read)
            try:
                return judge()
            finally:
                self.safely(lambda: self._read(aside=True))

        return judged

    def safely(self, work: Callable[[], Answer]) -> Answer | None:
        """Return the result of the work; None if it fails, or if this watch has failed before."""
        if not self.broken:
            try:
                return work()
            except Exception as error:
                self.broken = True
                self.over.set()
                log.warning("no telemetry of this training: %s: %s", type(error).__name__, error)
        return None

    def _read(self, epoch: bool = False, aside: bool = False) -> None:
        """Read all counters, which takes milliseconds and does not wait for the device."""
        processes, cuda = tree(os.getpid()), self.device.type == "cuda"
        own = used(processes)
        whole = own if self.top == os.getpid() else used(tree(self.top))
        reading = Reading(
            at_s=time.monotonic(),
            steps=self.steps,
            images=self.images,
            epochs=self.epochs,
            epoch=epoch,
            aside=aside,
            used=own,
            energy_j=self.gpu.energy_j(),
            host_mib=own_mib(processes),
            gpu_allocated_mib=torch.cuda.memory_allocated(self.device) / 2**20 if cuda else None,
            gpu_process_mib=self.gpu.process_mib({process.pid for process in processes}),
            cores=core_counters(whole.cpu_s),
        )
        self.seen.readings.append(reading)

    def _sample(self) -> None:
        """Take samples until the training is over."""
        processes: list[psutil.Process] = []
        looked_s = float("-inf")
        while not self.over.wait(PERIOD_S):
            now_s = time.monotonic()
            if now_s - looked_s >= TREE_S:
                processes, looked_s = tree(os.getpid()), now_s
            gpu = self.gpu.sample({process.pid for process in processes})
            self.seen.samples.append(Sample(now_s, rss_mib(processes), len(processes), gpu))
