"""SPDL's pipeline with a pool of processes ("MP" in its documentation, "Execution Models").

Each process makes whole batches in one thread, so that batches do not compete for one GIL. The processes live
as long as the loader. They write into slots of memory that is shared once: separate memory for each batch
would cost the receiving thread milliseconds for a handshake and a new mapping.
"""

import asyncio
import mmap
import multiprocessing
import threading
from asyncio import sleep
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from multiprocessing.util import Finalize

import numpy as np
import torch

from gpufeed.core.errors import GpufeedError
from gpufeed.loaders.base import STUCK_S, LoadRequest
from gpufeed.loaders.spdl_batches import Made, Part, on_device, parts_of
from gpufeed.loaders.spdl_pipeline import made_here, threads_of
from gpufeed.loaders.spdl_process import CONTEXT, SendingMaker, begin, gone, leave_signals, taken

ALIGNMENT = 64  # of every slot in bytes, enough for any dtype of torch


@dataclass(frozen=True)
class Written:
    """The place and shape of a batch in a slot. left: as in Made."""

    slot: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    left: int


class Slots:
    """`count` slots of `size` bytes each; a process that unpickles it shares the memory."""

    def __init__(self, size: int, count: int):
        """Raise GpufeedError if shared memory has no room."""
        size = -(-size // ALIGNMENT) * ALIGNMENT
        try:
            self.memory = torch.empty((count, size), dtype=torch.uint8).share_memory_()
        except RuntimeError as error:
            raise GpufeedError(
                f"no shared memory for {count} batches of {size} bytes ({error})",
                "room for two batches a process and two more, and a free file descriptor",
                "look at df /dev/shm and ulimit -n; use fewer workers or smaller batches",
            ) from error
        self.free = [*range(count)]  # used only in the process that made it

    def touch(self) -> None:
        """Fault in all pages of the slots now, instead of some with every batch written to them."""
        self.memory.view(-1)[:: mmap.PAGESIZE].sum()

    async def take(self) -> int:
        """Take a free slot; its user puts it back into `free`."""
        while not self.free:  # batches of an abandoned epoch are still being made
            await sleep(0.001)
        return self.free.pop()

    def write(self, made: Made, slot: int) -> Written:
        """Write a batch to a slot; raise GpufeedError if it has more bytes than the slot."""
        images, size = made.images.contiguous(), self.memory.shape[1]
        if images.nbytes > size:
            raise GpufeedError(
                f"a batch of {images.nbytes} bytes from the transform of samples",
                f"at most {size} bytes, judging by its result for an empty image",
                "let it return images of one shape and type",
            )
        self._view(slot, images.shape, images.dtype).copy_(images)
        return Written(slot, tuple(images.shape), images.dtype, made.left)

    def read(self, written: Written) -> Made:
        """Return a view of the batch, valid until its slot is overwritten."""
        return Made(self._view(written.slot, written.shape, written.dtype), written.left)

    def _view(self, slot: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return self.memory[slot, : torch.Size(shape).numel() * dtype.itemsize].view(dtype).view(shape)


AHEAD = 2  # batches a process, so that a slow one does not hold up the others at once
UNCOUNTED = 2  # attempts that SPDL's ordered pipe starts beyond its concurrency (0.8)
END_S = 5  # to wait for the current batches when the processes should end


class Processes:
    """Batches made by processes that end with `close` or with their parent."""

    def __init__(self, request: LoadRequest, samples: int):
        """Prepare the maker. samples: most in an epoch. Raises GpufeedError if it cannot send a transform."""
        self.request = request
        self.maker = SendingMaker(request)
        self.samples = samples
        self.count = threads_of(request)
        self.pool: ProcessPoolExecutor | None = None
        self.slots: Slots | None = None
        self.workers: list[BaseProcess] = []

    def open(self) -> None:
        """Start the processes, whose imports take seconds.

        Raises GpufeedError if they do not start, or if shared memory has no room for their batches.
        """
        self.slots = Slots(self.maker.batch_bytes(self.samples), AHEAD * self.count + UNCOUNTED)
        initargs = (CONTEXT.Barrier(self.count),)
        others = set(multiprocessing.active_children())
        self.pool = ProcessPoolExecutor(self.count, CONTEXT, initializer=begin_making, initargs=initargs)
        try:
            try:
                # each call starts a process. Its arguments go through the pool: arguments larger than a pipe,
                # passed at the start, would block this process until the imports are done
                found = [self.pool.submit(present, self.maker, self.slots) for _ in range(self.count)]
            finally:
                self.workers = [*set(multiprocessing.active_children()) - others]
            for one in found:
                one.result(2 * STUCK_S)
        except (threading.BrokenBarrierError, TimeoutError) as error:
            self.close()
            raise GpufeedError(
                f"processes of SPDL's pipeline that have not started within {STUCK_S} s or longer",
                f"{self.count} running processes",
                "look for a dead network mount and at the load of the node; use fewer workers",
            ) from error
        except BrokenProcessPool as error:
            raise self.gone(error) from error
        except BaseException:
            self.close()
            raise

    def run(self, order: np.ndarray, epoch: int) -> Iterator[Made]:
        """Yield the batches of `order` (sample ids, int64).

        Raises as `made_here` does, and GpufeedError if a process dies; the next epoch then has new ones.
        Batches begun for an abandoned epoch are finished first.
        """
        if self.pool is None:
            self.open()
        request = self.request
        parts = [*parts_of(order, epoch, request.batch_size)]
        try:
            yield from made_here(parts, self.attempt, AHEAD * self.count, request, threads=1)
        except BrokenProcessPool as error:
            raise self.gone(error) from error

    async def attempt(self, part: Part) -> Made | Exception:
        """Return a batch or its error."""
        slots = self.slots
        try:
            slot = await slots.take()
            work = self.pool.submit(made_by_this_process, part, slot)
        except Exception as error:
            return error.with_traceback(None)
        try:
            # an abandoned epoch cancels this coroutine but not the work: after a cancelled task, a pool that
            # loses a process may hang (CPython 3.11: its manager raises InvalidStateError)
            found = await asyncio.shield(asyncio.wrap_future(work))
            if isinstance(found, Exception):
                return found
            with on_device(self.request):
                return taken(slots.read(found), self.request)
        except Exception as error:
            return error.with_traceback(None)  # a traceback would keep the slots alive with the error
        finally:
            # runs at once, unless this was cancelled
            work.add_done_callback(lambda _: slots.free.append(slot))

    def gone(self, error: Exception) -> GpufeedError:
        """End the other processes and return the error."""
        self.close()
        return gone(error, f"{self.count} running processes")

    def close(self) -> None:
        """End the processes; safe to call twice."""
        pool, self.pool, self.slots = self.pool, None, None
        if pool is None:
            return
        ending = threading.Thread(target=pool.shutdown, kwargs={"cancel_futures": True}, daemon=True)
        ending.start()
        ending.join(END_S)
        for worker in self.workers:  # also where the pool's own thread has died
            if worker.is_alive():
                worker.kill()
        reader = getattr(pool._call_queue, "_reader", None)
        if reader is not None:  # in Python 3.11.2 a pool that broke may write for ever to a pipe nobody reads
            reader.close()
        ending.join(END_S)
        self.workers = []


making: SendingMaker | None = None  # in a process of the pool
filling: Slots | None = None
everybody: Barrier | None = None


def begin_making(together: Barrier) -> None:
    """Set up a process of the pool."""
    global everybody
    begin()
    everybody = together


def present(maker: SendingMaker, slots: Slots) -> None:
    """Open the maker and wait until all processes have; raise BrokenBarrierError if one does not."""
    global making, filling
    maker.open()
    leave_signals()  # SPDL's library has installed its own handler
    making, filling = maker, slots
    slots.touch()
    Finalize(None, forget, exitpriority=0)
    everybody.wait(STUCK_S)


def forget() -> None:
    """Release FFmpeg before the interpreter ends, to avoid warnings of SPDL's library."""
    making.library = None


def made_by_this_process(part: Part, slot: int) -> Written | Exception:
    found = making.attempt(part)
    return found if isinstance(found, Exception) else filling.write(found, slot)
