"""SPDL's pipeline in a process of its own: MTP in the words of its documentation ("Execution Models").

The process lives as long as the loader and makes the pipeline anew for each epoch. Batches come through
shared memory, SPDL's own, and are copied from there into (pinned) memory of this process.
"""

import pickle
from collections.abc import Iterable, Iterator
from contextlib import closing
from multiprocessing.reduction import ForkingPickler

import numpy as np
import torch
from spdl.pipeline import run_pipeline_in_subprocess

from gpufeed.core.errors import GpufeedError
from gpufeed.loaders.base import STUCK_S, LoadRequest
from gpufeed.loaders.spdl_batches import Made, Part, parts_of
from gpufeed.loaders.spdl_children import CONTEXT, SendingMaker, begin, gone, leave_signals, taken
from gpufeed.loaders.spdl_pipeline import WAITING, described, stuck, threads_of
from gpufeed.loaders.spdl_segments import Segments

HANDED = 2  # segments beyond those that wait: of the batch that is sent, and of the one that is copied
ALIGNMENT = 64  # bytes that SPDL may leave out at the beginning of a segment


class OwnProcess:
    """Batches made by the threads of a process that ends with `close`, or with this one."""

    def __init__(self, request: LoadRequest, samples: int):
        """samples: in an epoch, at most. Raises GpufeedError for a transform that no process can be sent."""
        self.request = request
        self.maker = SendingMaker(request)
        self.turn = Turn(samples, request.batch_size)
        self.batches: Iterable | None = None

    def open(self) -> None:
        """Starts the process, whose imports take seconds; raises GpufeedError if it does not come up."""
        size = ALIGNMENT + self.maker.batch_bytes(self.turn.most)
        segments = Segments(size, WAITING + HANDED, CONTEXT, STUCK_S)
        threads, maker = threads_of(self.request), Packed(self.maker)
        try:
            self.batches = run_pipeline_in_subprocess(
                described(self.turn, maker.attempt, threads, self.request).get_config(),
                num_threads=threads,
                buffer_size=WAITING,
                initializer=[begin, segments.attach, maker.open, leave_signals],
                mp_context=CONTEXT.get_start_method(),
                timeout=STUCK_S,
                arena=segments,
            )
        except RuntimeError as error:
            raise told(error, threads) from error
        segments.unlink()

    def run(self, order: np.ndarray, epoch: int) -> Iterator[Made]:
        """The batches of `order` (sample ids, int64).

        Raises what stopped a batch, and GpufeedError if the process dies or none comes for STUCK_S; the next
        epoch then has a new process.
        """
        if self.batches is None:
            self.open()
        self.turn.set(order, epoch)
        with closing(iter(self.batches)) as found:
            for _ in parts_of(order, epoch, self.request.batch_size):
                yield self._next(found)

    def _next(self, found: Iterator[Made | Exception]) -> Made:
        """The next batch in memory of this process: its segment is free again on return."""
        try:
            made = next(found)
        except RuntimeError as error:
            self.close()
            raise told(error, threads_of(self.request)) from error
        if isinstance(made, Exception):
            raise made
        return taken(made, self.request)

    def close(self) -> None:
        """Ends the process; safe to call twice."""
        batches, self.batches = self.batches, None
        if batches is not None:
            batches._finalizer()  # SPDL ends it with the last reference, which a traceback may keep


class Packed:
    """A maker that travels to another process in shared memory, whatever the length of its list of files.

    What a process is started with goes through a pipe, and Python (3.11) waits for ever where that is more
    than the pipe holds and the process has died before it read.
    """

    def __init__(self, maker: SendingMaker):
        self.maker = maker
        self.packed: torch.Tensor | None = None  # kept until the other process has it

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


class Turn(Iterable[Part]):
    """The order of the next epoch, in memory that the process shares: it is read when an epoch begins."""

    def __init__(self, most: int, batch_size: int):
        """most: samples in an epoch."""
        self.most, self.batch_size = most, batch_size
        self.shared = torch.zeros(2 + most, dtype=torch.int64).share_memory_()  # epoch, length, sample ids

    def set(self, order: np.ndarray, epoch: int) -> None:
        """order: sample ids, int64 (n,), n <= most."""
        self.shared[2 : 2 + len(order)] = torch.from_numpy(order)
        self.shared[:2] = torch.tensor([epoch, len(order)])

    def __iter__(self) -> Iterator[Part]:
        epoch, length = self.shared[:2].tolist()
        return parts_of(self.shared[2 : 2 + length].numpy().copy(), epoch, self.batch_size)


def told(error: RuntimeError, threads: int) -> GpufeedError:
    """SPDL's word on a process that died, failed or is stuck."""
    if "did not produce any data" in str(error):
        return stuck(STUCK_S, threads)
    return gone(error, f"a process with {threads} threads that stays alive and at work")
