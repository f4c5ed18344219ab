"""SPDL's pipeline in a separate process ("MTP" in its documentation, "Execution Models").

The process lives as long as the loader and makes a new pipeline for each epoch. Batches arrive in SPDL's
shared memory and are copied from there into (pinned) memory of this process.
"""

import multiprocessing
import os
import pickle
import signal
import traceback
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from multiprocessing.context import BaseContext
from multiprocessing.reduction import ForkingPickler
from multiprocessing.shared_memory import SharedMemory

import numpy as np
import torch
from spdl.pipeline import SharedMemorySegmentPool, run_pipeline_in_subprocess

from gpufeed.core.errors import GpufeedError
from gpufeed.loaders.base import STUCK_S, LoadRequest, empty_batch
from gpufeed.loaders.spdl_batches import BatchMaker, Made, Part, parts_of
from gpufeed.loaders.spdl_pipeline import WAITING, described, stuck, threads_of
from gpufeed.system.processes import settle

# not forked, since this process may have started CUDA; not by Python's fork server, which would outlive it
CONTEXT = multiprocessing.get_context("spawn")


class SendingMaker(BatchMaker):
    """A maker of batches in another process, which does not use the GPU."""

    def __init__(self, request: LoadRequest):
        """Raise GpufeedError for a transform that cannot be sent to a process."""
        check_transform(request)
        super().__init__(replace(request, device=torch.device("cpu"), pin_memory=False))

    def attempt(self, part: Part) -> Made | Exception:
        found = super().attempt(part)
        return sendable(found) if isinstance(found, Exception) else found

    def batch_bytes(self, samples: int) -> int:
        """Return the bytes of a full batch. samples: in an epoch, if these are fewer."""
        image, transform = torch.zeros(self.samples.shape, dtype=torch.uint8), self.request.sample_transform
        if transform is not None:
            image = transform(image, 0, 0)
        return image.nbytes * min(self.request.batch_size, samples)


def taken(made: Made, request: LoadRequest) -> Made:
    """Copy another process's batch to (pinned) memory of this one, so that its memory can be reused."""
    shape, dtype = tuple(made.images.shape), made.images.dtype
    images = empty_batch(shape, dtype, torch.device("cpu"), request)
    return Made(images.copy_(made.images), made.left)


def begin() -> None:
    """Set up a process: it ends with its parent and ignores signals to the job."""
    leave_signals()
    settle()
    # the parent may have died during the imports, before `settle`
    if not multiprocessing.parent_process().is_alive():
        os._exit(1)
    torch.set_num_threads(1)  # as in the DataLoader's workers, since several make batches at once


def leave_signals() -> None:
    """Ignore the signals that shells and Slurm send to all processes of a job."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def sendable(error: Exception) -> Exception:
    """Return the error with its traceback as a note; its type and message alone if it cannot be pickled."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def check_transform(request: LoadRequest) -> None:
    """Raise GpufeedError for a transform of samples that cannot be sent to a process."""
    try:
        ForkingPickler.dumps(request.sample_transform)
    except Exception as error:
        raise GpufeedError(
            f"a transform of samples that cannot be sent to a process ({error})",
            "one that can be pickled, for SPDL's processes",
            "define it at the top of a module, or use loader spdl without persistent_workers",
        ) from error


def gone(error: Exception, expected: str) -> GpufeedError:
    """Return the error for a process that has died. expected: of the GpufeedError."""
    return GpufeedError(
        f"a process of SPDL's pipeline is gone: {error}",
        expected,
        "look for an out-of-memory kill, a full /dev/shm or its messages in the log; use fewer workers",
    )


class Segments(SharedMemorySegmentPool):
    """A pool of `count` segments of `size` bytes, each for one batch, which readers see without a copy.

    SPDL's own pool (0.8) makes its lock by Python's default start method; a spawned process refuses it if
    that is fork. Its names also remain after a kill. Here the names are removed as soon as both processes
    have mapped the memory, which the kernel frees with the last of them.
    """

    def __init__(self, size: int, count: int, context: BaseContext, patience_s: float):
        """Make the segments. patience_s: how long a writer waits for a free one."""
        super().__init__(size, count, acquire_timeout=patience_s)
        self._space_cv = context.Condition()

    def attach(self) -> None:
        """Map the memory in the writing process, before its names are removed."""
        self._ctrl_view()
        self._segment(0)  # maps all of them

    def unlink(self) -> None:
        """Remove the names; safe to call twice."""
        for name in (self._ctrl_name, *self._seg_names):
            with suppress(FileNotFoundError):
                # registers again what `attach` has unregistered, so that Python's tracker sees one removal
                memory = SharedMemory(name)
                memory.unlink()
                memory.close()


IN_USE = 2  # segments beyond the queue: for the batch being sent and the one being copied
OFFSET = 64  # bytes that SPDL may skip at the beginning of a segment


class OwnProcess:
    """Batches made by the threads of a process that ends with `close` or with its parent."""

    def __init__(self, request: LoadRequest, samples: int):
        """Prepare the maker. samples: most in an epoch. Raises GpufeedError if it cannot send a transform."""
        self.request = request
        self.maker = SendingMaker(request)
        self.order = EpochOrder(samples, request.batch_size)
        self.batches: Iterable | None = None

    def open(self) -> None:
        """Start the process, whose imports take seconds; raise GpufeedError if it does not start."""
        size = OFFSET + self.maker.batch_bytes(self.order.most)
        segments = Segments(size, WAITING + IN_USE, CONTEXT, STUCK_S)
        threads, maker = threads_of(self.request), Packed(self.maker)
        try:
            self.batches = run_pipeline_in_subprocess(
                described(self.order, maker.attempt, threads, self.request).get_config(),
                num_threads=threads,
                buffer_size=WAITING,
                initializer=[begin, segments.attach, maker.open, leave_signals],
                mp_context=CONTEXT.get_start_method(),
                timeout=STUCK_S,
                arena=segments,
            )
        except RuntimeError as error:
            raise pipeline_error(error, threads) from error
        segments.unlink()

    def run(self, order: np.ndarray, epoch: int) -> Iterator[Made]:
        """Yield the batches of `order` (sample ids, int64).

        Raises the error of a batch, and GpufeedError if the process dies or no batch comes for STUCK_S; the
        next epoch then has a new process.
        """
        if self.batches is None:
            self.open()
        self.order.set(order, epoch)
        with closing(iter(self.batches)) as found:
            for _ in parts_of(order, epoch, self.request.batch_size):
                yield self._next(found)

    def _next(self, found: Iterator[Made | Exception]) -> Made:
        """Return the next batch, copied to memory of this process, so that its segment is free again."""
        try:
            made = next(found)
        except RuntimeError as error:
            self.close()
            raise pipeline_error(error, threads_of(self.request)) from error
        if isinstance(made, Exception):
            raise made
        return taken(made, self.request)

    def close(self) -> None:
        """End the process; safe to call twice."""
        batches, self.batches = self.batches, None
        if batches is not None:
            batches._finalizer()  # SPDL ends the process with the last reference, which a traceback may hold


class Packed:
    """A maker that is sent to another process in shared memory, since its list of files may be long.

    A process's arguments are sent through a pipe. If they exceed its size and the process dies before it
    reads, Python (3.11) hangs.
    """

    def __init__(self, maker: SendingMaker):
        self.maker = maker
        self.packed: torch.Tensor | None = None  # kept until the other process has mapped it

    def __getstate__(self) -> dict:
        pickled = bytearray(ForkingPickler.dumps(self.maker))
        self.packed = torch.frombuffer(pickled, dtype=torch.uint8).share_memory_()
        return {"packed": self.packed}

    def __setstate__(self, state: dict) -> None:
        self.__init__(pickle.loads(state["packed"].numpy()))

    def open(self) -> None:
        self.maker.open()

    def attempt(self, part: Part) -> Made | Exception:
        return self.maker.attempt(part)


class EpochOrder(Iterable[Part]):
    """The order of the next epoch in shared memory, which the process reads when an epoch begins."""

    def __init__(self, most: int, batch_size: int):
        """Allocate the memory. most: samples in an epoch."""
        self.most, self.batch_size = most, batch_size
        self.shared = torch.zeros(2 + most, dtype=torch.int64).share_memory_()  # epoch, length, sample ids

    def set(self, order: np.ndarray, epoch: int) -> None:
        """Set the next epoch's order: sample ids, int64 (n,), n <= most."""
        self.shared[2 : 2 + len(order)] = torch.from_numpy(order)
        self.shared[:2] = torch.tensor([epoch, len(order)])

    def __iter__(self) -> Iterator[Part]:
        epoch, length = self.shared[:2].tolist()
        return parts_of(self.shared[2 : 2 + length].numpy().copy(), epoch, self.batch_size)


def pipeline_error(error: RuntimeError, threads: int) -> GpufeedError:
    """Return the error for SPDL's error about a process that died, failed or is stuck."""
    if "did not produce any data" in str(error):
        return stuck(STUCK_S, threads)
    return gone(error, f"a running process with {threads} threads")
