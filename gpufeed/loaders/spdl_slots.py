"""Memory for the batches of several processes, shared with this one once and used again for each of them.

A batch in memory of its own would be handed over by a handshake with the process that made it, and mapped
here anew: milliseconds of the one thread that receives what all processes make.
"""

import mmap
from asyncio import sleep
from dataclasses import dataclass

import torch

from gpufeed.core.errors import GpufeedError
from gpufeed.loaders.spdl_batches import Made

ALIGNMENT = 64  # bytes, of every slot's beginning: any type of torch's may begin there


@dataclass(frozen=True)
class Written:
    """A batch in a slot. left: as in Made."""

    slot: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    left: int


class Slots:
    """`count` slots of `size` bytes each. Who unpickles it, in a process of Python's, has the same memory."""

    def __init__(self, size: int, count: int):
        """Raises GpufeedError if shared memory has no room."""
        size = -(-size // ALIGNMENT) * ALIGNMENT
        try:
            self.memory = torch.empty((count, size), dtype=torch.uint8).share_memory_()
        except RuntimeError as error:
            raise GpufeedError(
                f"no shared memory for {count} batches of {size} bytes ({error})",
                "room for two batches a process and two more, and a free file descriptor",
                "look at df /dev/shm and ulimit -n; take fewer workers or smaller batches",
            ) from error
        self.free = [*range(count)]  # of the process that has made it

    def touch(self) -> None:
        """Has this process map all slots now, in place of some with every batch that it writes into them."""
        self.memory.view(-1)[:: mmap.PAGESIZE].sum()

    async def take(self) -> int:
        """A slot that nobody uses; its user puts it back into `free`."""
        while not self.free:  # batches of an epoch that was left are still being made
            await sleep(0.001)
        return self.free.pop()

    def write(self, made: Made, slot: int) -> Written:
        """Raises GpufeedError for a batch of more bytes than a slot has."""
        images, size = made.images.contiguous(), self.memory.shape[1]
        if images.nbytes > size:
            raise GpufeedError(
                f"a batch of {images.nbytes} bytes from the transform of samples",
                f"{size} bytes at most, by what it made of an empty image",
                "let it make images of one shape and type",
            )
        self._view(slot, images.shape, images.dtype).copy_(images)
        return Written(slot, tuple(images.shape), images.dtype, made.left)

    def read(self, written: Written) -> Made:
        """The batch where it lies, until somebody writes into its slot."""
        return Made(self._view(written.slot, written.shape, written.dtype), written.left)

    def _view(self, slot: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return self.memory[slot, : torch.Size(shape).numel() * dtype.itemsize].view(dtype).view(shape)
