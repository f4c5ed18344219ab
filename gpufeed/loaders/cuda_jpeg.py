"""Files of any sizes from the page cache to samples on the device, decoded there by our own kernels.

Each of a few threads has its own stream, decoder and pinned buffer. They take turns: each reads, decodes and
crops every THREADS-th batch, across epochs.
"""

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch

from gpufeed import native
from gpufeed.augment.random_resized_crop import Windows
from gpufeed.augment.resample import resample
from gpufeed.core.errors import Skip
from gpufeed.decoders.base import EXACT, bad_file
from gpufeed.decoders.image_transfer import to_device
from gpufeed.decoders.jpeg_batch import BatchDecoder
from gpufeed.decoders.jpeg_groups import code_digest
from gpufeed.decoders.pillow import PillowDecoder
from gpufeed.decoders.ragged import Ragged
from gpufeed.loaders.base import Batch, LoadRequest, epoch_order, send
from gpufeed.loaders.prefetch import BatchPrefetcher
from gpufeed.loaders.streaming import StreamingLoader
from gpufeed.native.file_buffer import FileBuffer

THREADS = 3  # one batch is decoded and another one read, while a third is ready
READERS = 4  # threads at most that read the files of a batch
Images = Ragged | list[torch.Tensor]


class OwnKernels:
    """The kernels as the equivalence check needs to know a decoder."""

    name = "cuda_jpeg"
    tolerance = EXACT
    threads = 1

    def version(self) -> str:
        return f"{self.name} {code_digest()}"


def require_extension(loader: str, request: LoadRequest) -> None:
    """Load the library of our kernels that a request names; raise Skip if its device has none."""
    if request.extension is not None:
        native.load(request.extension)
    if sentence := native.status(request.device).sentence:
        raise Skip(f"Loader {loader} needs this project's extension. {sentence}")


@dataclass
class CountedBatch(Batch):
    """A batch. by_pillow: how many of its images the kernels left to Pillow."""

    by_pillow: int = 0


class CudaJpegLoader(StreamingLoader):
    """A loader by our kernels, which decode and resize the part of each image that its window needs.

    Other files go to Pillow.
    """

    decoder = "cuda_jpeg"
    keeps_on = True
    no_transfer = "It decodes on the device: no decoded pixels are copied."

    def __init__(self, request: LoadRequest):
        super().__init__(request)
        self.sizes = request.manifest.sizes()
        self.names = [os.fsencode(path) for path in self.reader.paths]
        self.turn = threading.Lock()  # for threads that take images decoded before (LoadRequest.decoded)
        self.streams: list[torch.cuda.Stream | None] = []  # of each thread
        self.makers: list[BatchPrefetcher] = []
        self.coming: tuple[int, int] | None = None  # epoch and number of the makers' next batch

    def open(self) -> None:
        """Raise Skip without the extension."""
        device = self.request.device
        require_extension(self.decoder, self.request)
        super().open()
        for _ in range(THREADS):
            own = None if self.stream is None else torch.cuda.Stream(device, priority=self.stream.priority)
            self.streams.append(own)

    def new_library(self) -> OwnKernels:
        return OwnKernels()

    def close(self) -> None:
        self._stop()
        self.streams = []
        super().close()

    def files(self) -> list[str]:
        self._stop()  # none of the next epoch has been read
        return super().files()

    def epoch_batches(self, done: int) -> Iterator[Batch]:
        begin = time.perf_counter()
        epoch, last = self.epoch, len(self) - 1
        for number in range(done, last + 1):
            if self.coming != (epoch, number):  # the first batch, or another iterator has taken some
                self._start(epoch, number)
            self.coming = None
            maker = self.makers.pop(0)
            self.makers.append(maker)
            batch = maker.get()
            self.coming = (epoch, number + 1) if number < last else (epoch + 1, 0)
            self.decode_counts.add(self.decoder, len(batch.ids) - batch.by_pillow)
            self.decode_counts.add("pillow", batch.by_pillow)
            yield replace(batch, load_ms=(time.perf_counter() - begin) * 1e3)
            begin = time.perf_counter()

    def _start(self, epoch: int, done: int) -> None:
        self._stop()
        if not self.streams:
            raise RuntimeError("the loader was closed while it was iterated over")
        r, readers = self.request, min(READERS, 1 + self.request.threads // THREADS)
        for number, stream in enumerate(self.streams):
            own = islice(self._planned(epoch, done), number, None, THREADS)
            # a new one each time, since a stuck thread that was abandoned may still write to its own
            buffer = FileBuffer(readers, pinned=stream is not None and r.pin_memory)
            made = self._batches(own, buffer, BatchDecoder(r.device))
            self.makers.append(BatchPrefetcher(made, r.device, stream))

    def _stop(self) -> None:
        stuck = any(maker.gave_up for maker in self.makers)
        for maker in self.makers:
            maker.gave_up = stuck  # do not wait for each: the others are stuck on the same mount
            maker.stopping.set()
        for maker in self.makers:
            maker.close()
        self.makers, self.coming = [], None

    def _planned(self, epoch: int, done: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield epoch and sample ids of the batches after the first `done` of an epoch, endlessly."""
        r = self.request
        while True:
            order = epoch_order(self.split_ids, r.seed, epoch, r.shuffle, r.rank, r.world_size)
            for start in range(done * r.batch_size, len(order), r.batch_size):
                yield epoch, order[start : start + r.batch_size]
            epoch, done = epoch + 1, 0

    def _batches(self, planned: Iterator[tuple[int, np.ndarray]], *tools: Any) -> Iterator[CountedBatch]:
        for epoch, ids in planned:
            yield self._batch(epoch, ids, *tools)

    def _batch(self, epoch: int, ids: np.ndarray, buffer: FileBuffer, decoder: BatchDecoder) -> CountedBatch:
        """Return a batch on the device, queued on the current stream, once its files are decoded."""
        device = self.request.device
        try:
            data, offsets = buffer.read([self.names[i] for i in ids.tolist()])
        except OSError as error:
            raise bad_file(error.filename, error.strerror) from error
        ids_there, labels = send(np.stack([ids, self.labels[ids]]), device).unbind()
        if self.request.decoded is not None:
            out = torch.empty((len(ids), *self.shape), dtype=torch.uint8, device=device)
            with self.turn:
                self.library.decode_into(list(ids), out)
            return CountedBatch(out, labels, ids_there, 0.0)
        windows = self._windows(ids, epoch)
        images, faults = decoder.decode_buffer(data, offsets, self._needed(windows))
        wrong = on_host(faults).numpy() != 0  # sync point: from here on the buffer is free
        rest, taken = np.flatnonzero(wrong), np.flatnonzero(~wrong)
        found = torch.stack(images.sides(), dim=1).numpy()
        for place in taken[(found != self.sizes[ids])[taken].any(1)].tolist():
            raise self._other_size(ids[place], (*found[place].tolist(), 3))
        if not len(rest):
            return CountedBatch(self._samples(images, windows), labels, ids_there, 0.0)
        files = [data[offsets[i] : offsets[i + 1]].numpy().tobytes() for i in rest.tolist()]
        parts: list[tuple[np.ndarray, Images]] = [(rest, self._by_pillow(files, ids[rest]))]
        if len(taken):
            parts.append((taken, images.select(torch.from_numpy(taken))))
        out = torch.empty((len(ids), *self.shape), dtype=torch.uint8, device=device)
        for places, part in parts:
            own = None if windows is None else windows.select(places)
            out.index_copy_(0, send(places, device), self._samples(part, own))
        return CountedBatch(out, labels, ids_there, 0.0, by_pillow=len(rest))

    def _by_pillow(self, files: list[bytes], ids: np.ndarray) -> list[torch.Tensor]:
        """Decode whole images by Pillow; return them on the device."""
        decoded = PillowDecoder().decode(files)
        for sample_id, image, outcome in zip(ids, decoded.images, decoded.outcomes, strict=True):
            if image is None:
                raise bad_file(self.reader.paths[sample_id], str(outcome.reason))
            if image.shape[:2] != tuple(self.sizes[sample_id]):
                raise self._other_size(sample_id, image.shape)
        return to_device(decoded.images, self.request.device)

    def _other_size(self, sample_id: int, shape: tuple[int, ...]) -> Exception:
        said = (*self.sizes[sample_id].tolist(), 3)
        return bad_file(self.reader.paths[sample_id], f"decoded to {shape}, the manifest says {said}")

    def _windows(self, ids: np.ndarray, epoch: int) -> Windows | None:
        if self.recipe is None:
            return None
        sides = torch.from_numpy(self.sizes[ids]).unbind(1)
        return self.recipe.windows_by_extension(torch.from_numpy(ids), epoch, *sides)

    def _needed(self, windows: Windows | None) -> torch.Tensor | None:
        """Return the part of each image to decode, int32 (n, 4); None for whole images."""
        return None if windows is None else windows.needed(self.recipe.size)

    def _samples(self, images: Images, windows: Windows | None) -> torch.Tensor:
        """Return the samples of decoded images, uint8 (n, H, W, 3), contiguous."""
        if windows is not None:
            return resample(images, windows, self.recipe.size)
        if isinstance(images, list):
            return torch.stack(images)
        whole = images.stacked()
        return torch.stack(images.views()) if whole is None else whole.contiguous()


def on_host(values: torch.Tensor) -> torch.Tensor:
    """Copy a small tensor to host memory; the thread sleeps until the copy is done."""
    if not values.is_cuda:
        return values
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    host.copy_(values, non_blocking=True)
    copied = torch.cuda.Event(blocking=True)
    copied.record()
    copied.synchronize()
    return host
