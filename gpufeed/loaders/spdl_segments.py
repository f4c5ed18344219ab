"""SPDL's shared memory for batches, as a spawned process can have it and nothing of it is left behind."""

from contextlib import suppress
from multiprocessing.context import BaseContext
from multiprocessing.shared_memory import SharedMemory

from spdl.pipeline import SharedMemorySegmentPool


class Segments(SharedMemorySegmentPool):
    """A pool of `count` segments of `size` bytes each, a batch in one; who reads sees them without a copy.

    By itself the pool (SPDL 0.8) has a lock of Python's default way to start processes, which a spawned one
    refuses where that is fork, and leaves its names with nobody who would remove them after a kill. Here the
    names go as soon as both processes have the memory, which the kernel frees with the last of them.
    """

    def __init__(self, size: int, count: int, context: BaseContext, patience_s: float):
        """patience_s: how long a writer waits for a free segment."""
        super().__init__(size, count, acquire_timeout=patience_s)
        self._space_cv = context.Condition()

    def attach(self) -> None:
        """Takes the memory into the process that writes, which later finds no name."""
        self._ctrl_view()
        self._segment(0)  # all of them

    def unlink(self) -> None:
        """Removes the names; safe to call twice."""
        for name in (self._ctrl_name, *self._seg_names):
            with suppress(FileNotFoundError):
                # registers what `attach` has unregistered, so that Python's tracker hears of it once
                memory = SharedMemory(name)
                memory.unlink()
                memory.close()
