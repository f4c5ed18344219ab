"""Prefetch: a thread runs an iterator ahead of its consumer and keeps a bounded queue of its items."""

import logging
import queue
import threading
import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gpufeed.core.errors import GpufeedError
from gpufeed.loaders.base import STUCK_S, Batch, LoadRequest, OrderedLoader

PRIORITY = 0  # of the stream that makes batches; -1 precedes the training step
DEPTH = 2  # items in the queue; one more may be in the thread's hands
POLL_S = 0.05  # how soon the thread notices that it should stop while the queue is full
LOOK_S = 1  # how soon a waiting consumer notices that the loader was closed
END_S = 5  # to wait for a thread that was stuck before, or that only cleans up

log = logging.getLogger("gpufeed")


class Prefetcher:
    """A thread that runs `source` and passes its items on in order, or the error that it raised.

    stuck_s: a source without an item for so long counts as stuck (mostly a dead network mount).
    """

    stuck_s: float = STUCK_S

    def __init__(self, source: Iterator, name: str, stopping: threading.Event | None = None):
        """Start the thread. stopping: set by `close`, for a source that itself waits for something."""
        self.source: Iterator | None = source
        self.gave_up = False
        self.ready: queue.Queue[Any] = queue.Queue(DEPTH)
        self.stopping = stopping or threading.Event()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def get(self) -> Any | None:
        """Return the next item, None after the last one; raise the source's error.

        Raises GpufeedError if nothing comes for `stuck_s`.
        """
        found = self._wait()
        if found is None or isinstance(found, BaseException):
            self.ready.put(found)  # the thread has ended: a further call gets the same
        if isinstance(found, BaseException):
            raise found
        return found

    def _wait(self) -> Any:
        """Wait for the thread's next item, checking every LOOK_S whether the loader was closed."""
        end = time.monotonic() + self.stuck_s
        while not self.stopping.is_set():
            try:
                return self.ready.get(timeout=max(0.0, min(LOOK_S, end - time.monotonic())))
            except queue.Empty:
                if time.monotonic() >= end:
                    self.gave_up = True
                    raise self.stuck() from None
        raise RuntimeError("the loader was closed while it was iterated over")

    def stuck(self) -> GpufeedError:
        """Return the error for no item within `stuck_s`."""
        return GpufeedError(
            f"nothing from the thread {self.thread.name} for {self.stuck_s:g} s",
            "the files or the pixels of the next batch",
            "look for a dead network mount, a disk or a GPU that hangs, and at the load of the node",
        )

    def close(self) -> None:
        """Stop the thread after its current item; safe to call twice.

        A thread that has not ended after `stuck_s`, or that was stuck before, is abandoned. It is a daemon,
        so that it does not keep its process alive.
        """
        self.stopping.set()
        self.thread.join(END_S if self.gave_up else self.stuck_s)
        if self.thread.is_alive():
            log.warning(
                "the thread %s has not ended: it still waits for its files or its device", self.thread.name
            )

    def around(self) -> AbstractContextManager:
        """Return the context in which the source runs."""
        return nullcontext()

    def finish(self, item: Any) -> Any:
        """Return what to pass on for an item; called in the thread."""
        return item

    def _run(self) -> None:
        try:
            with self.around():
                for item in self.source:
                    if not self._put(self.finish(item)):
                        return
            self._put(None)
        except BaseException as error:  # the consumer raises it
            self._put(error)
        finally:
            self._end_source()

    def _end_source(self) -> None:
        """Close the source, which may have started worker processes or a thread."""
        source, self.source = self.source, None
        if hasattr(source, "close"):
            source.close()

    def _put(self, item: Any) -> bool:
        """Wait for room in the queue; return False if the consumer has closed it."""
        while not self.stopping.is_set():
            try:
                self.ready.put(item, timeout=POLL_S)
                return True
            except queue.Full:
                continue
        return False


class BatchPrefetcher(Prefetcher):
    """Batches made on the device ahead of the training step; on CUDA on their own stream."""

    stuck_s = STUCK_S + 10  # longer than waits inside the source (for workers, for files): better errors

    def __init__(
        self,
        source: Iterator[Batch],
        device: torch.device,
        stream: "torch.cuda.Stream | None" = None,
        stopping: threading.Event | None = None,
    ):
        """Start the thread. source: queues its work on the current stream, in the thread `stream`."""
        self.device, self.stream = device, stream
        super().__init__(source, "gpufeed-prefetch", stopping)

    def around(self) -> AbstractContextManager:
        # the current stream belongs to a thread, and new tensors to the current stream
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def finish(self, item: Batch) -> tuple[Batch, "torch.cuda.Event | None"]:
        return item, None if self.stream is None else self.stream.record_event()

    def get(self) -> Batch | None:
        """Return the next batch, ready for the caller's current stream; None after the last one."""
        found = super().get()
        if found is None:
            return None
        batch, done = found
        if done is not None:
            hand_over(batch, done, torch.cuda.current_stream(self.device))
        return batch

    def batches(self, begin: float) -> Iterator[Batch]:
        """Yield all batches with the consumer's wait as load_ms; close the thread at the end.

        begin: when the wait for the first batch began, on the host's clock in seconds.
        """
        try:
            while (batch := self.get()) is not None:
                yield replace(batch, load_ms=(time.perf_counter() - begin) * 1e3)
                begin = time.perf_counter()
        finally:
            self.close()


def hand_over(batch: Batch, done: "torch.cuda.Event", consumer: "torch.cuda.Stream") -> None:
    """Make the consumer's stream wait for the batch, and keep its memory until that stream is done."""
    consumer.wait_event(done)
    for tensor in (batch.images, batch.labels, batch.ids):
        tensor.record_stream(consumer)  # allocated on the side stream, used on this one


class PrefetchLoader(OrderedLoader):
    """A loader whose batches a thread makes, on CUDA on a side stream, while the device computes.

    On devices other than CUDA the same code runs without streams.
    """

    works_ahead = True

    def __init__(self, request: LoadRequest):
        super().__init__(request)
        self.stream: torch.cuda.Stream | None = None
        self.prefetcher: BatchPrefetcher | None = None

    def open(self) -> None:
        if self.request.device.type == "cuda":
            self.stream = torch.cuda.Stream(self.request.device, priority=PRIORITY)

    @abstractmethod
    def source(self, order: np.ndarray, stopping: threading.Event) -> Iterator[Batch]:
        """Return the batches of `order` on the device, queued on the current stream.

        The consumer calls it; the thread runs the iterator. stopping: set when the consumer closes the
        loader.
        """

    def batches(self, order: np.ndarray) -> Iterator[Batch]:
        begin, stopping = time.perf_counter(), threading.Event()
        source = self.source(order, stopping)
        self.prefetcher = BatchPrefetcher(source, self.request.device, self.stream, stopping)
        yield from self.prefetcher.batches(begin)

    def close(self) -> None:
        if self.prefetcher is not None:
            self.prefetcher.close()
            self.prefetcher = None
