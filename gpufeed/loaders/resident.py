"""The whole split on the device: copied once, then every batch is gathered there."""

import time
from collections.abc import Iterator

import numpy as np
import torch

from gpufeed.core.errors import GpufeedError
from gpufeed.loaders.base import (
    Batch,
    DeferredGather,
    Loader,
    LoadRequest,
    permutation,
    refuse_transform,
    require_store,
)
from gpufeed.loaders.scaled_crops import DeviceCacheCrops
from gpufeed.stores.cache_format import open_cache
from gpufeed.system.host_memory import free_host_bytes

CHUNK_BYTES = 64 * 2**20  # of the cache that are copied at once
SHARE_OF_FREE = 0.9  # leaves room for the batches; whether the model fits shows later


class StoredBatch(Batch):
    """A batch whose images are gathered on request; `source` is for steps that gather them themselves."""

    def __init__(self, source: DeferredGather, labels: torch.Tensor, ids: torch.Tensor, load_ms: float):
        self.rows, self.labels, self.ids, self.load_ms, self.transfer = source, labels, ids, load_ms, None

    @property
    def source(self) -> DeferredGather:
        return self.rows

    @property
    def images(self) -> torch.Tensor:
        """uint8 (N, H, W, 3), gathered at each access."""
        return self.source.gathered()

    def first(self, n: int) -> "StoredBatch":
        return StoredBatch(self.source[:n], self.labels[:n], self.ids[:n], self.load_ms)

    def clone(self) -> "StoredBatch":
        return StoredBatch(self.source.clone(), self.labels.clone(), self.ids.clone(), 0.0)


class ResidentLoader(Loader):
    """A loader that copies the cache to the device in `open` and makes orders there; the host never waits.

    If the request says `ungathered`, batches hold row numbers, and the images are gathered on request.
    """

    no_decoding = "The cache holds decoded pixels."
    no_transfer = "The split was copied to the device before the first epoch."

    def __init__(self, request: LoadRequest):
        super().__init__(request)
        check_request("resident", request)
        self.images: torch.Tensor | None = None  # uint8 (n, H, W, 3), row i = split_ids[i]
        self.labels: torch.Tensor | None = None  # int64 (n,)
        self.ids: torch.Tensor | None = None  # int64 (n,)
        self.crops: DeviceCacheCrops | None = None  # instead of images, with a recipe

    def open(self) -> None:
        """Copy the split to the device; raise GpufeedError if it does not fit."""
        r = self.request
        if r.recipe is not None:
            crops = DeviceCacheCrops(r)
            check_room(crops.bytes, free_bytes(r.device), r)
            crops.load()
            self.crops = crops
        else:
            cache = open_cache(r.cache, r.manifest)
            needed = len(self.split_ids) * int(np.prod(cache.shape[1:]))
            check_room(needed, free_bytes(r.device), r)
            self.images = copy_rows(cache, self.split_ids, r.device)
        self.labels = torch.from_numpy(r.manifest.labels()[self.split_ids]).to(r.device)
        self.ids = torch.from_numpy(self.split_ids).to(r.device)

    def close(self) -> None:
        self.images = self.labels = self.ids = self.crops = None

    def example(self) -> DeferredGather | None:
        r = self.request
        n = min(r.batch_size, len(self.split_ids))
        return DeferredGather(self.images, torch.arange(n, device=r.device)) if r.ungathered else None

    def epoch_batches(self, done: int) -> Iterator[Batch]:
        r, begin = self.request, time.perf_counter()
        n = len(self.split_ids)
        rows = permutation(n, r.seed, self.epoch, r.device) if r.shuffle else torch.arange(n, device=r.device)
        rows = rows[r.rank :: r.world_size][done * r.batch_size :].contiguous()
        labels, ids, size = self.labels[rows], self.ids[rows], r.batch_size
        for chosen, own_labels, own_ids in zip(
            *(part.split(size) for part in (rows, labels, ids)), strict=True
        ):
            if self.crops is not None:
                images = self.crops.samples(chosen, own_ids, self.epoch)
                yield Batch(images, own_labels, own_ids, (time.perf_counter() - begin) * 1e3)
                begin = time.perf_counter()
                continue
            source = DeferredGather(self.images, chosen)
            if r.ungathered:
                yield StoredBatch(source, own_labels, own_ids, (time.perf_counter() - begin) * 1e3)
            else:
                images = source.gathered()
                yield Batch(images, own_labels, own_ids, (time.perf_counter() - begin) * 1e3)
            begin = time.perf_counter()


def check_request(loader: str, request: LoadRequest) -> None:
    """Raise GpufeedError unless the request has a cache, and no transform of single samples."""
    require_store(loader, request)
    refuse_transform(loader, request, "it decodes nothing")


def free_bytes(device: torch.device) -> int:
    """Return the device's free memory in bytes; without its own memory, the host's that the job may use."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return free_host_bytes()


def check_room(needed: int, free: int, request: LoadRequest) -> None:
    """Raise GpufeedError unless `needed` bytes fit into SHARE_OF_FREE of the free ones."""
    if needed > SHARE_OF_FREE * free:
        raise GpufeedError(
            f"{needed / 2**30:.2f} GiB of pixels in split {request.split!r} of "
            f"{request.manifest.info.dataset}, {free / 2**30:.2f} GiB free on {request.device}",
            f"at most {SHARE_OF_FREE:.0%} of the free memory",
            "choose a loader that streams, smaller images, or a device with more memory",
        )


def copy_rows(cache: np.ndarray, rows: np.ndarray, device: torch.device) -> torch.Tensor:
    """Return the rows of a uint8 (N, H, W, 3) array on the device."""
    return fill(torch.empty((len(rows), *cache.shape[1:]), dtype=torch.uint8, device=device), cache, rows)


def fill(images: torch.Tensor, cache: np.ndarray, rows: np.ndarray) -> torch.Tensor:
    """Copy the rows of an array to `images`, on any device, a chunk at a time; return it."""
    step = max(1, CHUNK_BYTES // int(np.prod(cache.shape[1:])))
    for start in range(0, len(rows), step):
        images[start : start + step].copy_(torch.from_numpy(cache[rows[start : start + step]]))
    return images
