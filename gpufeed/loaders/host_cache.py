"""The whole split in host memory, from which a thread gathers batches and copies them on a side stream."""

import logging
import threading
import warnings
from collections.abc import Iterator

import numpy as np
import torch

from gpufeed.loaders.base import Batch, LoadRequest, empty_batch, send, upload
from gpufeed.loaders.prefetch import PrefetchLoader
from gpufeed.loaders.resident import SHARE_OF_FREE, check_request, fill
from gpufeed.loaders.scaled_crops import HostCacheCrops
from gpufeed.stores.cache_format import open_cache
from gpufeed.system.host_memory import free_host_bytes

log = logging.getLogger("gpufeed")


class HostCacheLoader(PrefetchLoader):
    """A loader that reads the cache in `open`, into pinned memory if the device is a CUDA GPU.

    A split that does not fit there is gathered from the memory map of its file, which is logged: its first
    epoch reads the disk, later ones the page cache as far as it holds the file. A batch is gathered into its
    own pinned memory, so that its copy overlaps the compute.
    """

    no_decoding = "The cache holds decoded pixels."

    def __init__(self, request: LoadRequest):
        super().__init__(request)
        check_request("host_cache", request)
        self.labels = request.manifest.labels()
        self.rows: torch.Tensor | None = None  # uint8 (n, H, W, 3)
        self.ids = self.split_ids  # sample id of each row, ascending
        self.crops: HostCacheCrops | None = None  # instead of rows, with a recipe

    def open(self) -> None:
        super().open()
        if self.request.recipe is not None:
            self.crops = HostCacheCrops(self.request)
            if has_room(self.crops.bytes, pin=False):
                self.crops.load()
            return
        cache = open_cache(self.request.cache, self.request.manifest)
        pin = self.request.device.type == "cuda" and self.request.pin_memory
        rows = copy_rows(cache, self.split_ids, pin)
        if rows is None:
            self.ids, rows = np.arange(len(cache)), mapped(cache)
        self.rows = rows

    def close(self) -> None:
        super().close()
        self.rows = self.crops = None

    def source(self, order: np.ndarray, stopping: threading.Event) -> Iterator[Batch]:
        return self._made(order, self.epoch)

    def _made(self, order: np.ndarray, epoch: int) -> Iterator[Batch]:
        device, size = self.request.device, self.request.batch_size
        ids, labels = send(order, device), send(self.labels[order], device)
        places = torch.from_numpy(np.searchsorted(self.ids, order))
        for start in range(0, len(order), size):
            end = min(start + size, len(order))
            if self.crops is not None:
                part = places[start:end].numpy(), order[start:end]
                images, transfer = self.crops.samples(*part, epoch)
            else:
                images, transfer = upload(self._gather(places[start:end]), device)
            yield Batch(images, labels[start:end], ids[start:end], 0.0, transfer)

    def _gather(self, places: torch.Tensor) -> torch.Tensor:
        """Return the rows at `places`, int64 (n,), in a new (pinned) batch, uint8 (n, H, W, 3)."""
        shape = (len(places), *self.rows.shape[1:])
        batch = empty_batch(shape, torch.uint8, torch.device("cpu"), self.request)
        return torch.index_select(self.rows, 0, places, out=batch)


def copy_rows(cache: np.ndarray, rows: np.ndarray, pin: bool) -> torch.Tensor | None:
    """Copy rows of a uint8 (N, H, W, 3) array to (pinned) memory; log and return None without room."""
    shape = len(rows), *cache.shape[1:]
    if not has_room(int(np.prod(shape)), pin):
        return None
    try:
        copied = torch.empty(shape, dtype=torch.uint8, pin_memory=pin)
    except RuntimeError as error:  # a limit on locked memory, or on the driver's part of it
        log.warning("no pinned memory (%s): the cache is read through a memory map", error)
        return None
    return fill(copied, cache, rows)


def has_room(size: int, pin: bool) -> bool:
    """Return whether so many bytes of a cache fit into (pinned) memory; log if they do not."""
    needed, free = allocated(size, pin), free_host_bytes()
    if needed <= SHARE_OF_FREE * free:
        return True
    said = (
        "%.2f GiB of %s for the cache, %.2f GiB free: it stays in its file and is read through a memory map"
    )
    log.warning(said, needed / 2**30, "pinned memory" if pin else "memory", free / 2**30)
    return False


def allocated(size: int, pin: bool) -> int:
    """Return the bytes that an allocation takes; torch rounds pinned ones up to a power of two."""
    return 1 << (size - 1).bit_length() if pin else size


def mapped(cache: np.ndarray) -> torch.Tensor:
    """Return a read-only memory map as a tensor, which must not be written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(cache)
