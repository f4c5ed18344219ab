"""A cell that runs out of memory, begun again with a smaller batch where its config allows one."""

import gc
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch

from gpufeed.core.cells import Cell
from gpufeed.core.errors import GpufeedError, Skip, first_line

Made = TypeVar("Made")
log = logging.getLogger("gpufeed")
# of errors that have no type of their own: of the CUDA runtime, driver and libraries, and of torch on the CPU
SAID = (
    *("out of memory", "cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY"),
    *("STATUS_ALLOC_FAILED", "can't allocate memory"),
)


class OutOfMemory(GpufeedError):
    """No batch that the cell may have fits; it names those that were tried."""


def fitting(
    cell: Cell,
    work: Callable[[Cell], Made],
    first: int | None = None,
    again: Callable[[], bool] = lambda: True,
) -> tuple[int, Made]:
    """Return (batch size, what `work` returned) of the cell, or of the same cell with the first batch that
    fits.

    The batch is halved from `batch_size` down to `smallest_batch_size`, if the cell has one; its other
    settings stay. first: the batch to begin with, where the cell may have it. again: whether the work may
    still be begun again. Raises OutOfMemory where none fits, and what else stops `work`.
    """
    tried: list[int] = []
    least = cell.smallest_batch_size
    if first is not None and least is not None and least <= first < cell.batch_size:
        cell = replace(cell, batch_size=first)
    while True:
        tried.append(cell.batch_size)
        try:
            return cell.batch_size, work(cell)
        except Exception as error:
            if isinstance(error, Skip) or not out_of_memory(error):
                raise
            smaller = halved(cell) if again() else None
            if smaller is None:
                raise OutOfMemory(
                    f"out of memory at {sizes(tried)} ({first_line(error)})",
                    "a batch that fits",
                    "lower batch_size, or smallest_batch_size, down to which it is halved",
                ) from error
            log.warning(
                "out of memory at batch size %d, begun again with %d: %s",
                cell.batch_size,
                smaller.batch_size,
                first_line(error),
            )
        cell = smaller
        release()  # here and not above: the error holds the frames, and they what is to be freed


def halved(cell: Cell) -> Cell | None:
    """Return the cell with half its batch, or the smallest that it may have; None where it has that
    already.
    """
    least = cell.smallest_batch_size
    if least is None or cell.batch_size <= least:
        return None
    return replace(cell, batch_size=max(least, cell.batch_size // 2))


def sizes(tried: list[int]) -> str:
    """`batch size 512`, or `batch sizes 512, 256 and 128`."""
    *before, last = map(str, tried)
    return f"batch sizes {', '.join(before)} and {last}" if before else f"batch size {last}"


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error, or one that it followed upon, says that memory ran out: a device's or the
    host's.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, torch.OutOfMemoryError | MemoryError):
            return True
        if type(seen).__name__ == "OutOfMemoryError":  # CuPy's, without importing it
            return True
        if isinstance(seen, RuntimeError) and any(words in str(seen) for words in SAID):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def release() -> None:
    """Give back what the try before held, and forgets what was compiled for its batch.

    torch.compile would take a second size for a dimension that changes, and make slower code.
    """
    gc.collect()
    torch.compiler.reset()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
