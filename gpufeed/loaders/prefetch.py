"""Work ahead of the consumer: a thread runs an iterator and keeps a bounded number of its items waiting."""

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

PRIORITY = 0  # of the stream that makes batches; -1 goes before the training step
DEPTH = 2  # items that wait; one more may be in the thread's hands
POLL_S = 0.05  # how soon the thread sees that it should stop while the queue is full
LOOK_S = 1  # how soon a consumer that waits sees that the loader was closed
END_S = 5  # for a thread that has given nothing for long already, or that only cleans up

log = logging.getLogger("gpufeed")


class Ahead:
    """A thread that runs `source` and hands its items over in order, or the error that it ran into.

    stuck_s: without an item for so long the source counts as stuck (a dead network mount, mostly).
    """

    stuck_s: float = STUCK_S

    def __init__(self, source: Iterator, name: str, stopping: threading.Event | None = None):
        """stopping: set by `close`, for a source that waits for something itself."""
        self.source: Iterator | None = source
        self.gave_up = False
        self.ready: queue.Queue[Any] = queue.Queue(DEPTH)
        self.stopping = stopping or threading.Event()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def get(self) -> Any | None:
        """Return the next item, None after the last one; raise what the thread ran into.

        Raises GpufeedError if nothing comes for `stuck_s`.
        """
        found = self._wait()
        if found is None or isinstance(found, BaseException):
            self.ready.put(found)  # the thread has ended: whoever asks again hears the same
        if isinstance(found, BaseException):
            raise found
        return found

    def _wait(self) -> Any:
        """Return what the thread puts next. Sleeps until it is there, and wakes each LOOK_S to look
        around.
        """
        end = time.monotonic() + self.stuck_s
        while not self.stopping.is_set():
            try:
                return self.ready.get(timeout=max(0.0, min(LOOK_S, end - time.monotonic())))
            except queue.Empty:
                if time.monotonic() >= end:
                    self.gave_up = True
                    raise self.stuck() from None
        raise RuntimeError("the loader was closed while its batches were still asked for")

    def stuck(self) -> GpufeedError:
        """Return what is wrong when nothing came for `stuck_s`."""
        return GpufeedError(
            f"nothing from the thread {self.thread.name} for {self.stuck_s:g} s",
            "the files or the pixels of the next batch",
            "look for a dead network mount, a disk or a GPU that hangs, and at the load of the node",
        )

    def close(self) -> None:
        """Stop the thread after the item that it is at; safe to call twice.

        A thread that is still at it after `stuck_s`, or that was stuck before, is left to itself. It is a
        daemon: it does not keep its process alive.
        """
        self.stopping.set()
        self.thread.join(END_S if self.gave_up else self.stuck_s)
        if self.thread.is_alive():
            log.warning("the thread %s does not end: what it waits for does not come", self.thread.name)

    def around(self) -> AbstractContextManager:
        """Return what the source runs in."""
        return nullcontext()

    def finish(self, item: Any) -> Any:
        """Return what is handed over for an item; called in the thread."""
        return item

    def _run(self) -> None:
        try:
            with self.around():
                for item in self.source:
                    if not self._put(self.finish(item)):
                        return
            self._put(None)
        except BaseException as error:  # whatever it is, the consumer must hear of it
            self._put(error)
        finally:
            self._end_source()

    def _end_source(self) -> None:
        """End what the source itself started (worker processes, a thread of its own), with this thread."""
        source, self.source = self.source, None
        if hasattr(source, "close"):
            source.close()

    def _put(self, item: Any) -> bool:
        """Wait for room; False if the consumer has gone."""
        while not self.stopping.is_set():
            try:
                self.ready.put(item, timeout=POLL_S)
                return True
            except queue.Full:
                continue
        return False


class BatchesAhead(Ahead):
    """Batches made on the device ahead of the step that takes them; on CUDA on a stream of their own."""

    stuck_s = STUCK_S + 10  # who waits within the source (for worker processes, for files) speaks first

    def __init__(
        self,
        source: Iterator[Batch],
        device: torch.device,
        stream: "torch.cuda.Stream | None" = None,
        stopping: threading.Event | None = None,
    ):
        """source: queues its work on the current stream, which in the thread is `stream`."""
        self.device, self.stream = device, stream
        super().__init__(source, "gpufeed-ahead", stopping)

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
        """Yield all of them, with load_ms as the consumer's wait for each, and the thread's end.

        begin: when the wait for the first one began, on the host's clock in seconds.
        """
        try:
            while (batch := self.get()) is not None:
                yield replace(batch, load_ms=(time.perf_counter() - begin) * 1e3)
                begin = time.perf_counter()
        finally:
            self.close()


def hand_over(batch: Batch, done: "torch.cuda.Event", consumer: "torch.cuda.Stream") -> None:
    """Make the consumer's stream wait for the batch, and keeps the memory until that stream is done."""
    consumer.wait_event(done)
    for tensor in (batch.images, batch.labels, batch.ids):
        tensor.record_stream(consumer)  # allocated on the side stream, used on this one


class AheadLoader(OrderedLoader):
    """A loader whose batches are made by a thread, on CUDA on a side stream, while the device computes.

    On devices other than CUDA the same code runs without streams.
    """

    works_ahead = True

    def __init__(self, request: LoadRequest):
        super().__init__(request)
        self.stream: torch.cuda.Stream | None = None
        self.ahead: BatchesAhead | None = None

    def open(self) -> None:
        if self.request.device.type == "cuda":
            self.stream = torch.cuda.Stream(self.request.device, priority=PRIORITY)

    @abstractmethod
    def source(self, order: np.ndarray, stopping: threading.Event) -> Iterator[Batch]:
        """Return the batches of `order` on the device, queued on the current stream.

        Called by the consumer; what it returns is run by the thread. stopping: set when the consumer goes.
        """

    def batches(self, order: np.ndarray) -> Iterator[Batch]:
        begin, stopping = time.perf_counter(), threading.Event()
        source = self.source(order, stopping)
        self.ahead = BatchesAhead(source, self.request.device, self.stream, stopping)
        yield from self.ahead.batches(begin)

    def close(self) -> None:
        if self.ahead is not None:
            self.ahead.close()
            self.ahead = None
