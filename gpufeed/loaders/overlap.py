"""Copies on a side stream: while the device computes on batch N, a thread copies batch N+1."""

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import torch

from gpufeed.loaders.base import Batch, Loader, LoadRequest
from gpufeed.loaders.samples import HostBatch, HostBatches, to_device, told

DEPTH = 2  # device batches that wait; one more may be in the thread's hands
POLL_S = 0.05  # how soon the thread sees that it should stop while the queue is full


class OverlapLoader(Loader):
    """Host batches as the DataLoader makes them, with or without workers, copied ahead by one thread.

    With pin_memory (the default) the copies run beside the compute; without it CUDA stages them through
    its own buffer, and only the thread waits. On devices other than CUDA the same code runs without streams.
    """

    def __init__(self, request: LoadRequest):
        super().__init__(request)
        self.host = HostBatches(request)
        self.stream: torch.cuda.Stream | None = None
        self.ahead: CopyAhead | None = None

    def open(self) -> None:
        if self.request.device.type == "cuda":
            self.stream = torch.cuda.Stream(self.request.device)

    def batches(self, order: np.ndarray) -> Iterator[Batch]:
        begin = time.perf_counter()
        # Workers are started here, not in the thread: forking beside a thread that holds locks can hang them.
        stopping = threading.Event()
        source = self.host.start(order, self.epoch, stopping)
        self.ahead = ahead = CopyAhead(source, self.request.device, self.stream, stopping)
        try:
            while (batch := self._next(ahead)) is not None:
                ahead.hand_over(batch)
                yield replace(batch, load_ms=(time.perf_counter() - begin) * 1e3)
                begin = time.perf_counter()
        finally:
            ahead.close()

    def _next(self, ahead: "CopyAhead") -> Batch | None:
        try:
            return ahead.get()
        except RuntimeError as error:  # the signal of a dead worker interrupts the wait of the main thread
            raise told(error, self.request.workers) from error

    def close(self) -> None:
        if self.ahead is not None:
            self.ahead.close()
            self.ahead = None
        self.host.close()


class CopyAhead:
    """A thread that copies host batches to the device and keeps at most DEPTH of them waiting."""

    def __init__(
        self,
        source: Iterator[HostBatch],
        device: torch.device,
        stream: "torch.cuda.Stream | None",
        stopping: threading.Event,
    ):
        self.source, self.device, self.stream = source, device, stream
        self.ready: queue.Queue[Batch | BaseException | None] = queue.Queue(DEPTH)
        self.stopping = stopping
        self.thread = threading.Thread(target=self._run, name="gpufeed-overlap", daemon=True)
        self.thread.start()

    def get(self) -> Batch | None:
        """The next batch, None after the last one; raises what the thread ran into."""
        if self.stopping.is_set():
            raise RuntimeError("the loader was closed while its batches were still asked for")
        found = self.ready.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def hand_over(self, batch: Batch) -> None:
        """Makes the consumer's stream wait for the copy, and keeps the memory until that stream is done."""
        if self.stream is None:
            return
        current = torch.cuda.current_stream(self.device)
        current.wait_event(batch.transfer.end.event)
        for tensor in (batch.images, batch.labels, batch.ids):
            tensor.record_stream(current)  # allocated on the side stream, used on this one

    def close(self) -> None:
        """Stops the thread after the batch that it is at; safe to call twice."""
        self.stopping.set()
        self.thread.join()

    def _run(self) -> None:
        try:
            # the current stream belongs to a thread, and new tensors to the current stream
            with nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
                for host in self.source:
                    if not self._put(to_device(host, self.device, self.stream)):
                        return
            self._put(None)
        except BaseException as error:  # whatever it is, the consumer must hear of it
            self._put(error)
        finally:
            self.source = None  # lets the workers go with the thread

    def _put(self, item: Batch | BaseException | None) -> bool:
        """Waits for room; False if the consumer has gone."""
        while not self.stopping.is_set():
            try:
                self.ready.put(item, timeout=POLL_S)
                return True
            except queue.Full:
                continue
        return False
