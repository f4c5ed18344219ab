"""Samples read and decoded on the host by torch's DataLoader, the basis of several loaders."""

import math
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.references import is_reference
from gpufeed.core.registry import load
from gpufeed.core.run_time_estimate import shared_memory, waiting
from gpufeed.decoders.base import Decoder, bad_file
from gpufeed.decoders.pillow import resized
from gpufeed.loaders.base import STUCK_S, Batch, LoadRequest
from gpufeed.loaders.host_crops import HostCrops, decoded_alone
from gpufeed.system import sigterm_handler
from gpufeed.system.host_memory import free_host_bytes
from gpufeed.system.processes import garbage_kept
from gpufeed.system.timing import Mark, Span

# How often the wait checks for dead workers. DataLoader checks only when its timeout ends, and the signal of
# a dead child reaches the main thread alone: another thread would wait for the whole of STUCK_S.
LOOK_S = 2


@dataclass
class HostBatch:
    """One batch in host memory, before the copy. load_ms: how long its reader waited for it."""

    images: torch.Tensor
    labels: torch.Tensor
    ids: torch.Tensor
    load_ms: float


class Samples(Dataset):
    """Maps (sample id, epoch) to (image, label, sample id), or to the error that names a bad file.

    Errors are returned, not raised, since DataLoader rebuilds a worker's exception from a single string.
    """

    def __init__(self, request: LoadRequest):
        manifest = request.manifest
        # with shards the names are for errors only, and nothing needs to be unpacked
        self.root = manifest.files_root() if request.shards is None else manifest.root
        self.paths = np.array(manifest.table["path"].tolist())  # one block, so that forked workers share it
        self.labels = manifest.labels()
        self.shape, self.resize = (*request.image_size, 3), manifest.info.resize
        self.transform, self.decoded = request.sample_transform, request.decoded
        self.decoder: Decoder = load("decoder", request.decoder)()
        self.crops = HostCrops(request.recipe, self.decoder) if request.recipe else None
        self.sizes = manifest.sizes() if request.recipe else None
        self.maker, self.seed = manifest.pixels if manifest.made else None, request.seed
        if manifest.made and is_reference(manifest.info.layout):
            self.maker(int(manifest.ids(request.split)[0]))  # opens the Dataset before workers are forked

    def __getitem__(self, key: tuple[int, int]) -> tuple[torch.Tensor, int, int] | GpufeedError:
        return self.made(*key)

    def made(
        self, sample_id: int, epoch: int, data: bytes | None = None
    ) -> tuple[torch.Tensor, int, int] | GpufeedError:
        """Return the item (sample id, epoch). data: the sample's file, if it has been read already."""
        try:
            image = torch.from_numpy(self.read(sample_id, data, epoch))  # (H, W, 3)
        except GpufeedError as error:
            return error
        if self.transform is not None:
            image = self.transform(image, sample_id, epoch)  # (3, H, W)
        return image, int(self.labels[sample_id]), sample_id

    def read(self, sample_id: int, data: bytes | None = None, epoch: int = 0) -> np.ndarray:
        """Return the pixels of one sample, uint8 (H, W, 3); raise GpufeedError naming its file.

        data: as in `made`. epoch: in which a recipe draws its window.
        """
        if self.maker is not None and self.decoded is None:
            image = self.maker(sample_id, self.seed, epoch)
            if self.crops is not None:
                return self.crops.of_image(image, sample_id, epoch)
            if image.shape != self.shape:
                path = self.paths[sample_id]
                raise GpufeedError(
                    f"{path}: made as {image.shape}, but the first of its split as {self.shape}",
                    "items of one size",
                    "give its source `resize: [height, width]`, or use a recipe that crops and resizes",
                )
            return image
        path = self.root / str(self.paths[sample_id])
        if data is None and self.maker is None:
            try:
                data = path.read_bytes()
            except OSError as error:
                raise bad_file(path, error.strerror or str(error)) from error
        if self.decoded is not None:
            return self.decoded[sample_id % len(self.decoded)]
        if self.crops is not None:
            return self.crops.of_file(data, path, sample_id, epoch, tuple(self.sizes[sample_id].tolist()))
        image = decoded_alone(self.decoder, data, path)
        if self.resize:
            return resized(image, self.resize)
        if image.shape != self.shape:
            raise bad_file(path, f"decoded to {image.shape}, the manifest says {self.shape}")
        return image


def collate(samples: list) -> list[torch.Tensor] | GpufeedError:
    """Return [images, labels, ids] of a batch, or the first error among its samples."""
    for sample in samples:
        if isinstance(sample, GpufeedError):
            return sample
    return default_collate(samples)


class BatchOrder(Sampler):
    """Lists of (sample id, epoch), one list a batch, from which the workers also learn the epoch."""

    def __init__(self, batch_size: int):
        self.batch_size = batch_size
        self.set(np.empty(0, dtype=np.int64), 0)

    def set(self, order: np.ndarray, epoch: int) -> None:
        self.order, self.epoch = order, epoch

    def __len__(self) -> int:
        return -(-len(self.order) // self.batch_size)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        order, epoch = self.order.tolist(), self.epoch
        for start in range(0, len(order), self.batch_size):
            yield [(sample_id, epoch) for sample_id in order[start : start + self.batch_size]]


def batch_bytes(request: LoadRequest) -> int:
    """Return the bytes of one batch in host memory."""
    value = 1 if request.sample_transform is None else 4  # uint8, or float32
    return request.batch_size * math.prod(request.image_size) * 3 * value


def require_shared_memory(request: LoadRequest) -> None:
    """Raise Skip if shared memory has no room for the batches of worker processes, which would be killed."""
    needed = waiting(batch_bytes(request), request.workers, request.prefetch_factor)
    for disk in shared_memory(needed, free_host_bytes()):
        if disk.needed > disk.free:
            raise Skip(f"Batches of {request.workers} worker processes do not fit: {disk}; {disk.remedy}.")


class HostBatches:
    """Batches in host memory, by one DataLoader for all epochs with persistent workers, else one an epoch."""

    def __init__(self, request: LoadRequest):
        require_shared_memory(request)
        self.request = request
        self.samples = Samples(request)
        self.sampler = BatchOrder(request.batch_size)
        self.loader: DataLoader | None = None
        self.iterator: Iterator | None = None

    def close(self) -> None:
        """End the workers; safe to call twice."""
        end_workers(self.iterator)
        self.loader = self.iterator = None

    def start(
        self, order: np.ndarray, epoch: int, stopping: threading.Event | None = None
    ) -> Iterator[HostBatch]:
        """Start the workers on the batches of `order`; return an iterator over the batches.

        stopping: an event that ends the wait for a batch, for a reader in another thread.
        """
        begin = time.perf_counter()
        if self.loader is None:
            self.loader = self._new_loader()
        self.sampler.set(order, epoch)
        self.iterator = self._restart()
        if not self.request.persistent_workers:
            self.loader = None
        return self._guard(self.iterator, begin, stopping or threading.Event())

    def _restart(self) -> Iterator:
        """Return an iterator over the new order; torch waits here until all persistent workers have answered.

        Answers may be late on a busy node, and a second call would wake the workers twice. So this one wait
        may last STUCK_S.
        """
        persistent = self.iterator if self.request.persistent_workers and self.request.workers else None
        if persistent is None:
            with garbage_kept():
                return iter(self.loader)
        persistent._timeout = STUCK_S
        try:
            return iter(self.loader)
        except RuntimeError as error:
            self.close()
            raise worker_error(error, self.request.workers) from error
        finally:
            persistent._timeout = LOOK_S

    def _new_loader(self) -> DataLoader:
        r = self.request
        return DataLoader(
            **self.reading(),
            num_workers=r.workers,
            prefetch_factor=r.prefetch_factor if r.workers else None,
            persistent_workers=r.persistent_workers and r.workers > 0,
            pin_memory=r.pin_memory and r.device.type == "cuda",
            timeout=LOOK_S if r.workers else 0,
            worker_init_fn=sigterm_handler.left_to_parent,
            # its own generator: each iterator draws a seed, and the model's random numbers must not depend on
            # it
            generator=torch.Generator().manual_seed(r.seed),
        )

    def reading(self) -> dict[str, Any]:
        """Return DataLoader's arguments for dataset and batching."""
        return {"dataset": self.samples, "batch_sampler": self.sampler, "collate_fn": collate}

    def _guard(self, iterator: Iterator, begin: float, stopping: threading.Event) -> Iterator[HostBatch]:
        """Yield the batches; then end workers that are not persistent, and after an error all of them."""
        try:
            yield from self._wait_for_each(iterator, begin, stopping)
        except Exception:
            self.close()
            raise
        finally:
            if not self.request.persistent_workers:
                end_workers(iterator)

    def _wait_for_each(
        self, iterator: Iterator, begin: float, stopping: threading.Event
    ) -> Iterator[HostBatch]:
        """Yield each batch. begin: when the wait for the first one began, on the host's clock."""
        while not stopping.is_set():
            try:
                found = next(iterator)
            except StopIteration:
                return
            except RuntimeError as error:
                if timed_out(error) and time.perf_counter() - begin < STUCK_S:
                    continue  # the next call waits for the same batch
                raise worker_error(error, self.request.workers) from error
            if isinstance(found, GpufeedError):
                raise found
            yield HostBatch(*found, load_ms=(time.perf_counter() - begin) * 1e3)
            begin = time.perf_counter()


def end_workers(iterator: Iterator | None) -> None:
    """End the worker processes of a DataLoader's iterator, if it has any.

    If this is left to the garbage collector, as after an exception, torch 2.10 waits 5 s for each worker in
    vain. It then sends SIGTERM, which our workers ignore (sigterm_handler.left_to_parent).
    """
    if hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()
        for worker in getattr(iterator, "_workers", ()):
            if worker.is_alive():
                worker.kill()


def timed_out(error: RuntimeError) -> bool:
    return str(error).startswith("DataLoader timed out")


def worker_error(error: RuntimeError, workers: int) -> Exception:
    """Return DataLoader's error for a dead or stuck worker as a GpufeedError; any other error unchanged."""
    if timed_out(error):
        found = f"no batch from the DataLoader workers for {STUCK_S} s"
    elif str(error).startswith("DataLoader worker"):
        found = str(error).splitlines()[0]
    else:
        return error
    return GpufeedError(
        found,
        f"{workers} running worker processes",
        "look for an out-of-memory kill, a full /dev/shm or a dead network mount; use fewer workers",
    )


def to_device(host: HostBatch, device: torch.device) -> Batch:
    """Return the batch on the device; on CUDA the copy is queued on the current stream."""
    if device.type == "cpu":
        return Batch(host.images, host.labels, host.ids, host.load_ms)
    # From pinned memory the host does not wait; from pageable memory CUDA stages the bytes before it returns.
    non_blocking = device.type == "cuda"
    start = Mark(device)
    images, labels, ids = (
        tensor.to(device, non_blocking=non_blocking) for tensor in (host.images, host.labels, host.ids)
    )
    return Batch(images, labels, ids, host.load_ms, Span(start, Mark(device)))


def copied(batches: Iterator[HostBatch], device: torch.device) -> Iterator[Batch]:
    """Yield each host batch on the device; the copy is queued on the current stream."""
    with closing(batches):
        for batch in batches:
            yield to_device(batch, device)
