"""The rows of a cache that is being built: a memory map of the file, filled from the host or a device."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpufeed.core.errors import GpufeedError

if TYPE_CHECKING:  # importing torch takes 3 s, and decoding processes of CPU decoders do without it
    import torch


class Rows:
    """Writes batches of images into an allocated uint8 (N, H, W, 3) array file.

    What is written is there at once for every process of this node. Nobody waits for the disk here: a wait
    in every task would count as time of its decoder. What comes from a CUDA device goes through one pinned
    buffer of the largest batch so far, so that neither host nor device ever holds more than a batch.
    """

    def __init__(self, path: Path):
        self.rows = np.load(path, mmap_mode="r+")
        self.written = np.zeros(len(self.rows), dtype=np.bool_)
        self.buffer: torch.Tensor | None = None  # uint8 (n, H, W, 3), pinned

    def write(self, ids: np.ndarray | Sequence[int], images: "np.ndarray | torch.Tensor") -> None:
        """images: uint8 (n, H, W, 3), row i of them is sample ids[i]; ready for the current stream.

        Raises GpufeedError for images of another shape or dtype.
        """
        found = (tuple(images.shape), str(images.dtype).removeprefix("torch."))
        if found != ((len(ids), *self.rows.shape[1:]), "uint8"):
            raise GpufeedError(
                f"{found[1]} {found[0]} for {len(ids)} rows of a cache",
                f"uint8 {(len(ids), *self.rows.shape[1:])}",
                "prepare the dataset at one size, or take another decoder",
            )
        self.rows[ids] = images if isinstance(images, np.ndarray) else self._on_host(images)
        self.written[ids] = True

    def _on_host(self, images: "torch.Tensor") -> np.ndarray:
        if images.device.type == "cpu":
            return images.numpy()
        if self.buffer is None or len(self.buffer) < len(images):
            self.buffer = images.new_empty(images.shape, device="cpu", pin_memory=images.is_cuda)
        return self.buffer[: len(images)].copy_(images).numpy()  # sync point: waits for the copy


def allocate(path: Path, shape: tuple[int, ...]) -> None:
    """Makes an empty uint8 array file and reserves its blocks.

    Reserved here, because a memory map that runs into a full disk later ends the process by SIGBUS.
    """
    np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def write_rows(path: Path, batches: Iterable[tuple[Sequence[int], "np.ndarray | torch.Tensor"]]) -> None:
    """Fills an allocated file from (ids, images) as `Rows.write` takes them, in any order.

    Raises GpufeedError if a row is left unwritten.
    """
    rows = Rows(path)
    for ids, images in batches:
        rows.write(ids, images)
    if missing := len(rows.written) - int(rows.written.sum()):
        raise GpufeedError(
            f"{missing} of {len(rows.written)} samples without an image",
            "one for every sample of the manifest",
            "build the set that the images come from again",
        )
