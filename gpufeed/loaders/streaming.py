"""Loaders that read and decode every file in every epoch, in whole batches, each by one library.

A thread reads the files of the next batch while this one is decoded.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from gpufeed.augment.resample import prepare, resample
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.registry import LOADERS, load
from gpufeed.datasets.manifest import Manifest
from gpufeed.decoders.base import DecodeCounts, Decoded, Decoder, Outcome, bad_file
from gpufeed.decoders.encoded_file import read_file
from gpufeed.loaders.base import Batch, LoadRequest, empty_batch, refuse_transform, send, upload
from gpufeed.loaders.prefetch import Prefetcher, PrefetchLoader
from gpufeed.system.timing import Span


class PredecodedImages(Decoder):
    """Returns given images of one size in turn, whatever the files; reports the wrapped decoder's name."""

    def __init__(self, of: Decoder, images: np.ndarray, device: torch.device):
        """Copy images, uint8 (n, H, W, 3), to `device`."""
        from torch import from_numpy

        super().__init__(of.threads)
        self.of, self.name = of, of.name
        self.host, self.images, self.next = images, from_numpy(images).to(device), 0

    def decode(self, files: list[bytes]) -> Decoded:
        places = self._places(len(files))
        return Decoded([self.host[place] for place in places], [Outcome(self.name)] * len(files))

    def decode_into(self, files: list[bytes], out: torch.Tensor) -> list[Outcome]:
        """Copy neighbouring images together: one copy a batch, or two at the end of the images."""
        start = 0
        while start < len(files):
            end = min(len(files), start + len(self.images) - self.next)
            out[start:end].copy_(self.images[self.next : self.next + end - start])
            self.next = (self.next + end - start) % len(self.images)
            start = end
        return [Outcome(self.name)] * len(files)

    def version(self) -> str:
        return self.of.version()

    def _places(self, count: int) -> list[int]:
        places = [(self.next + number) % len(self.images) for number in range(count)]
        self.next = (self.next + count) % len(self.images)
        return places


@dataclass(frozen=True)
class FileBatch:
    """The encoded files of one batch and their sample ids, int64 (n,)."""

    ids: np.ndarray
    encoded: list[bytes]


class FileReader:
    """Reads the files of a manifest by sample id, with as few system calls as possible."""

    def __init__(self, manifest: Manifest):
        self.paths = [os.fspath(path) for path in manifest.paths()]

    def batches(self, order: np.ndarray, batch_size: int) -> Iterator[FileBatch]:
        """Yield the files of `order` (sample ids, int64) in batches; raise GpufeedError naming a bad one."""
        for start in range(0, len(order), batch_size):
            ids = order[start : start + batch_size]
            yield FileBatch(ids, [self.read(sample_id) for sample_id in ids.tolist()])

    def read(self, sample_id: int) -> bytes:
        """Return the whole file of one sample; raise GpufeedError if it cannot be read."""
        return read_file(self.paths[sample_id])


class StreamingLoader(PrefetchLoader):
    """A loader with one thread that reads files and another that decodes them, on CUDA on a side stream.

    Images decoded on the device stay there (Batch.transfer is None). Those decoded on the host are copied
    from pinned memory, unless pin_memory is false. DALI itself copies the batches that it reads.
    """

    decoder: ClassVar[str]  # its name in the registry, also the loader's
    resamples: ClassVar[bool] = True  # whether our kernel resizes the windows of a recipe
    no_decoding = None

    def __init__(self, request: LoadRequest):
        """Raise GpufeedError for an impossible request, and Skip without CUDA if the loader needs it."""
        super().__init__(request)
        self.check_transform()
        check_size(self.decoder, request)
        device = request.device.type
        if LOADERS[self.decoder].device == "cuda" and device != "cuda":
            raise Skip(f"Loader {self.decoder} decodes on a CUDA GPU, and this cell's device is {device}.")
        self.shape, self.recipe = (*request.image_size, 3), request.recipe
        self.sizes = request.manifest.sizes() if self.recipe else None
        self.labels = request.manifest.labels()
        self.reader = FileReader(request.manifest)
        self.library: Decoder | None = None
        self.decode_counts = DecodeCounts(self.decoder)

    def check_transform(self) -> None:
        """Raise GpufeedError for a transform of single samples, since whole batches are decoded."""
        refuse_transform(self.decoder, self.request, "it decodes whole batches")

    def open(self) -> None:
        """Set up the library; raise Skip if this node cannot run it."""
        super().open()
        if self.recipe is not None and self.resamples:
            prepare(self.request.device, self.recipe.size)
        on_cuda = self.request.device.type == "cuda"
        with torch.cuda.device(self.request.device) if on_cuda else nullcontext():  # decoders take this one
            self.library = self.new_library()
        if self.request.decoded is not None:
            self.library = PredecodedImages(self.library, self.request.decoded, self.request.device)

    def new_library(self) -> Decoder:
        """Return the decoder, on the request's threads and the current device."""
        return load("decoder", self.decoder)(self.request.threads)

    def close(self) -> None:
        super().close()
        self.library = None

    def files(self) -> list[str]:
        return self.files_of_split()

    def source(self, order: np.ndarray, stopping: threading.Event) -> Iterator[Batch]:
        return self._made(order, self.epoch)

    def _made(self, order: np.ndarray, epoch: int) -> Iterator[Batch]:
        # labels and ids of the whole epoch are sent at once and sliced on the device
        ids, labels = send(order, self.request.device), send(self.labels[order], self.request.device)
        start = 0
        for files in self._files(order):
            images, transfer = self._images(files, epoch)
            end = start + len(images)
            yield Batch(images, labels[start:end], ids[start:end], 0.0, transfer)
            start = end

    def _images(self, files: FileBatch, epoch: int) -> tuple[torch.Tensor, Span | None]:
        """Return the batch's pixels on the request's device, and the span of their copy, if any."""
        device = self.request.device
        on_device = LOADERS[self.decoder].device == "cuda"
        images = self.pixels(files, epoch, device if on_device else torch.device("cpu"))
        return upload(images, device) if images.device.type == "cpu" else (images, None)

    def _files(self, order: np.ndarray) -> Iterator[FileBatch]:
        """Yield the files of each batch, read ahead by a thread that ends with this iterator."""
        reader = Prefetcher(self.reader.batches(order, self.request.batch_size), "gpufeed-read")
        with closing(reader):
            while (files := reader.get()) is not None:
                yield files

    def pixels(self, files: FileBatch, epoch: int, device: torch.device) -> torch.Tensor:
        """Return the decoded images, uint8 (N, H, W, 3), on `device` or the request's.

        Raises GpufeedError naming a bad file.
        """
        if self.recipe is not None and self.request.decoded is None:
            return self.crops(files, epoch, device)
        out = empty_batch((len(files.ids), *self.shape), torch.uint8, device, self.request)
        outcomes = self.library.decode_into(files.encoded, out)
        for sample_id, outcome in zip(files.ids, outcomes, strict=True):
            if outcome.decoder is None:
                raise bad_file(self.reader.paths[sample_id], str(outcome.reason))
        self.decode_counts.take(outcomes)
        return out

    def crops(self, files: FileBatch, epoch: int, device: torch.device) -> torch.Tensor:
        """Return the samples of a recipe: decode whole files of any sizes and resize their windows."""
        decoded, sizes = self.library.decode_to(files.encoded, device), self.sizes[files.ids]
        for sample_id, image, outcome, size in zip(
            files.ids, decoded.images, decoded.outcomes, sizes.tolist(), strict=True
        ):
            reason = outcome.reason if image is None else None
            if image is not None and list(image.shape[:2]) != size:
                reason = f"decoded to {tuple(image.shape)}, the manifest says {size}"
            if reason is not None:
                raise bad_file(self.reader.paths[sample_id], str(reason))
        self.decode_counts.take(decoded.outcomes)
        windows = self.recipe.windows(torch.from_numpy(files.ids), epoch, *torch.from_numpy(sizes).unbind(1))
        return resample(decoded.images, windows, self.recipe.size)


def check_size(loader: str, request: LoadRequest) -> None:
    """Raise GpufeedError if the dataset's images are to be resized and the loader cannot resize."""
    info = request.manifest.info
    if info.resize is not None and not LOADERS[loader].resizes:
        height, width = info.resize
        raise GpufeedError(
            f"{info.dataset}, to be resized to {height} x {width} pixels, in loader {loader}",
            "a dataset at the size of its files",
            "use dali_cpu, dali_gpu, a loader that reads a cache, or one of the DataLoader's",
        )


class TorchvisionCudaLoader(StreamingLoader):
    """torchvision.io.decode_jpeg on the GPU."""

    decoder = "torchvision_cuda"
    no_transfer = "It decodes on the device: no decoded pixels are copied."


class TorchcodecCudaLoader(StreamingLoader):
    """torchcodec's decode_jpeg on the GPU."""

    decoder = "torchcodec_cuda"
    no_transfer = "It decodes on the device: no decoded pixels are copied."


class NvImageCodecLoader(StreamingLoader):
    """nvImageCodec on the GPU."""

    decoder = "nvimgcodec"
    no_transfer = "It decodes on the device: no decoded pixels are copied."
