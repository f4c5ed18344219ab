"""Restart a cell that runs out of memory with a smaller batch, if its config allows one."""

import gc
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch

from gpufeed.core.cells import Cell
from gpufeed.core.errors import GpufeedError, Skip, first_line
from gpufeed.training.cuda_graph import forget_errors

Made = TypeVar("Made")
log = logging.getLogger("gpufeed")
# texts of errors without a type: of the CUDA runtime, driver and libraries, and of torch on the CPU
SAID = (
    *("out of memory", "cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY"),
    *("STATUS_ALLOC_FAILED", "can't allocate memory"),
)


class OutOfMemory(GpufeedError):
    """No batch size that the cell allows fits; the message names those that were tried."""


def fitting(
    cell: Cell,
    work: Callable[[Cell], Made],
    first: int | None = None,
    again: Callable[[], bool] = lambda: True,
) -> tuple[int, Made]:
    """Call `work` with the cell, with smaller batches until one fits; return that size and the result.

    The batch is halved from `batch_size` down to `smallest_batch_size`, if the cell has one; its other
    settings stay. first: the batch to begin with, if the cell allows it. again: whether the work may still be
    restarted. Raises OutOfMemory if none fits, and other errors of `work`.
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
                "out of memory at batch size %d, starting again with %d: %s",
                cell.batch_size,
                smaller.batch_size,
                first_line(error),
            )
        cell = smaller
        release()  # not above, where the error's frames still hold the memory


def halved(cell: Cell) -> Cell | None:
    """Return the cell with half its batch, at least the smallest allowed; None if it has that already."""
    least = cell.smallest_batch_size
    if least is None or cell.batch_size <= least:
        return None
    return replace(cell, batch_size=max(least, cell.batch_size // 2))


def sizes(tried: list[int]) -> str:
    """Return a text such as `batch size 512`, or `batch sizes 512, 256 and 128`."""
    *before, last = map(str, tried)
    return f"batch sizes {', '.join(before)} and {last}" if before else f"batch size {last}"


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error, or one in its chain, means that the device's or the host's memory ran out."""
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
    """Free the memory of the last attempt, and forget its errors and what was compiled for its batch size.

    For a second size torch.compile would assume a dynamic dimension and make slower code.
    """
    gc.collect()
    torch.compiler.reset()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        forget_errors()
