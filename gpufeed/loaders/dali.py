"""DALI as a loader: it reads and decodes by itself; augment `dali` becomes a part of its pipeline.

If a split has files that DALI does not take, its decoding pipeline is fed with the bytes of each batch, so
that other decoders can decode those files.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image

from gpufeed.augment.dali import DaliAugment, DaliCrops
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.registry import load
from gpufeed.decoders.base import bad_file, checked
from gpufeed.decoders.encoded_file import mean_size
from gpufeed.decoders.fallback import resize_tolerance
from gpufeed.loaders.base import Batch, LoadRequest, empty_batch, epoch_order
from gpufeed.loaders.streaming import FileBatch, StreamingLoader

if TYPE_CHECKING:
    from gpufeed.decoders.dali_pipeline import DecodePipeline
    from gpufeed.decoders.fallback import ResizingDecoder
    from gpufeed.loaders.dali_own_reader import OwnReading
    from gpufeed.loaders.dali_reader import Planned, ReadingPipeline

CHUNK = 256  # files of a task when all headers are checked

log = logging.getLogger("gpufeed")


class DaliLoader(StreamingLoader):
    """Decoded batches, or with augment `dali` augmented ones, float32 (N, 3, H, W), from DALI's pipelines.

    We draw a recipe's windows; DALI decodes, resizes and flips them. The request's threads decode, and a
    quarter as many read.
    """

    no_decoding = "DALI reads and decodes by itself."
    resamples = False

    def __init__(self, request: LoadRequest):
        super().__init__(request)
        self.work: DaliAugment | DaliCrops | None = request.sample_transform
        if request.recipe is not None:
            self.work = DaliCrops(request.recipe, self.sizes)
            self.resampling = resize_tolerance(request.image_size)  # a sample's sides may be its window's
        self.reads = False  # whether DALI reads the files itself
        self.reading: ReadingPipeline | OwnReading | None = None
        self.fed: DecodePipeline | None = None  # decoder and `work` in one, fed with bytes

    def new_library(self) -> ResizingDecoder:
        library = load("decoder", self.decoder)(self.request.threads, self.request.manifest.info.resize)
        library.expect(mean_size([self.reader.paths[sample_id] for sample_id in self.split_ids.tolist()]))
        return library

    def check_transform(self) -> None:
        if not isinstance(self.request.sample_transform, DaliAugment):
            super().check_transform()

    def open(self) -> None:
        """Set up the loader; check the header of every file of the split, whether DALI takes it."""
        super().open()
        strange = self.not_taken()
        self.reads = strange is None
        if self.reads:
            if self.recipe is not None:
                self.library.make_room(*self.sizes[self.split_ids].max(0).tolist())
            self.reading = self.new_reading()
        else:
            self.not_for_reader(strange)
        self.decode_counts.settings = self.library.settings

    @property
    def keeps_on(self) -> bool:
        """Whether DALI reads the files itself, which it does across epochs; if fed with bytes it does not."""
        return self.reads

    def close(self) -> None:
        super().close()
        self.reading = self.fed = None

    def not_for_reader(self, path: str) -> None:
        """Log that DALI does not take a file."""
        log.info("%s is fed with bytes: it does not take %s", self.decoder, path)

    def not_taken(self) -> str | None:
        """Return the path of a file of the split that DALI does not take or nobody can read, or None."""
        chunks = [self.split_ids[start : start + CHUNK] for start in range(0, len(self.split_ids), CHUNK)]
        with ThreadPoolExecutor(self.request.threads, "gpufeed-headers") as pool:
            for found in pool.map(self._not_taken, chunks):
                if found is not None:
                    pool.shutdown(cancel_futures=True)
                    return found
        return None

    def _not_taken(self, ids: np.ndarray) -> str | None:
        for sample_id in ids.tolist():
            path = self.reader.paths[sample_id]
            try:
                data = self.reader.read(sample_id)
            except GpufeedError:
                return path
            if not self.takes(sample_id, data):
                return path
        return None

    def takes(self, sample_id: int, data: bytes) -> bool:
        """Return whether DALI takes a sample's file and its size is that of the manifest."""
        size = self.shape[:2] if self.sizes is None else tuple(self.sizes[sample_id].tolist())
        return self.library.takes_all([data], size)

    def new_reading(self) -> ReadingPipeline | OwnReading:
        from gpufeed.loaders.dali_reader import ReadingPipeline

        batch_size = min(self.request.batch_size, self.share)
        r, decoder = self.request, self.library.pipeline
        return ReadingPipeline(decoder, self.reader.paths, batch_size, r.device, self.work)

    def planned(self, order: np.ndarray, epoch: int) -> Iterator[Planned]:
        """Yield the batches of `order`, the rest of an epoch, and of all later epochs, endlessly."""
        from gpufeed.loaders.dali_reader import Planned

        r = self.request
        while True:
            for start in range(0, len(order), r.batch_size):
                yield Planned(epoch, order[start : start + r.batch_size])
            epoch += 1
            order = epoch_order(self.split_ids, r.seed, epoch, r.shuffle, r.rank, r.world_size)

    def _made(self, order: np.ndarray, epoch: int) -> Iterator[Batch]:
        if self.reading is not None:
            self.reading.follow(self.planned(order, epoch))
        yield from super()._made(order, epoch)

    def _files(self, order: np.ndarray) -> Iterator[FileBatch]:
        """Return the ids of each batch alone if DALI reads the files, else their bytes too."""
        if not self.reads:
            return super()._files(order)
        size = self.request.batch_size
        return (FileBatch(order[start : start + size], []) for start in range(0, len(order), size))

    def pixels(self, files: FileBatch, epoch: int, device: torch.device) -> torch.Tensor:
        if files.encoded:
            return self.from_bytes(files, epoch, device)
        images = self.from_reader(files.ids)
        if images is not None:
            self.decode_counts.add(self.decoder, len(files.ids))
            return images
        # decoding each file alone reports, or works around, whatever is wrong with one
        encoded = [self.reader.read(sample_id) for sample_id in files.ids.tolist()]
        return self.from_bytes(FileBatch(files.ids, encoded), epoch, device)

    def from_reader(self, ids: np.ndarray) -> torch.Tensor | None:
        """Return the next batch that DALI has read, on the request's device.

        Return None if that failed; later batches are then fed as bytes.
        """
        if self.reading is None:
            return None
        from gpufeed.loaders.dali_reader import OTHER_SIZES

        shape, dtype = self.output()
        out = empty_batch((len(ids), *shape), dtype, self.request.device, self.request)
        try:
            if self.reading.fill(ids, out):
                return out
            reason = OTHER_SIZES
        except RuntimeError as error:
            self.check_device(error)
            reason = what_dali_says(error)
        self.given_up(reason)
        log.warning("%s is fed with bytes from now on: its own reader found %s", self.decoder, reason)
        self.reads, self.reading = False, None
        return None

    def given_up(self, reason: str) -> None:
        """Handle a failure of DALI's reader; raise if nothing may replace it."""

    def check_device(self, error: RuntimeError) -> None:
        """Raise an error that is not about a file."""

    def output(self) -> tuple[tuple[int, ...], torch.dtype]:
        """Return the shape and dtype of one sample."""
        if not isinstance(self.work, DaliAugment):
            return self.shape, torch.uint8
        height, width, channels = self.shape
        return (channels, *self.work.output_size(height, width)), torch.float32

    def from_bytes(self, files: FileBatch, epoch: int, device: torch.device) -> torch.Tensor:
        """Return what `pixels` does, given the bytes of files, some of which DALI may not take."""
        if self.work is None:
            return super().pixels(files, epoch, device)
        if self.fed is None:
            self.fed = self.library.new_pipeline(work=self.work)
        shape, dtype = self.output()
        out = empty_batch((len(files.ids), *shape), dtype, device, self.request)
        if isinstance(self.work, DaliCrops):
            self.cut(files, epoch, out)
            return out
        values = self.work.values(files.ids, epoch)
        taken = self.library.takes_all(files.encoded, self.shape[:2])
        if taken and self.library.fill_by(self.fed, files.encoded, out, **values):
            self.decode_counts.add(self.decoder, len(files.ids))
            return out
        # DALI does not take one of the files: feed all of them as PNG, which is lossless
        decoded = super().pixels(files, epoch, device).cpu().numpy()
        if not self.library.fill_by(self.fed, [png(image) for image in decoded], out, **values):
            raise GpufeedError(
                f"DALI takes no PNG of {self.shape[0]} x {self.shape[1]} pixels",
                "an augmented batch",
                "use augment none or torch",
            )
        return out

    def cut(self, files: FileBatch, epoch: int, out: torch.Tensor) -> None:
        """Fill `out`, uint8 (N, size, size, 3), by DALI for files that it takes, else by Pillow."""
        ids, sizes = files.ids, [tuple(size) for size in self.sizes[files.ids].tolist()]
        taken = [place for place, i in enumerate(ids.tolist()) if self.takes(i, files.encoded[place])]
        part, values = out[: len(taken)], self.work.values(ids[taken], epoch)
        if self.library.fill_by(self.fed, [files.encoded[place] for place in taken], part, **values):
            self.decode_counts.add(self.decoder, len(taken))
            out[taken] = part.clone()
        else:
            taken = []
        rest = sorted({*range(len(ids))} - {*taken})
        decoded = self.library.decode([files.encoded[place] for place in rest])
        outcomes = checked(decoded, [(*sizes[place], 3) for place in rest])
        for place, image, outcome in zip(rest, decoded.images, outcomes, strict=True):
            if outcome.decoder is None:
                raise bad_file(self.reader.paths[ids[place]], str(outcome.reason))
            window = self.recipe.window(int(ids[place]), epoch, *sizes[place])
            out[place] = torch.from_numpy(self.recipe.cut(image, window))
        self.decode_counts.take(outcomes)


class DaliCpuLoader(DaliLoader):
    """DALI on the CPU, on the request's threads; it copies batches to the device if it reads the files."""

    decoder = "dali_cpu"

    def check_device(self, error: RuntimeError) -> None:
        if self.request.device.type == "cuda":
            torch.cuda.synchronize(self.request.device)  # raises if the GPU has failed
            if isinstance(error, torch.OutOfMemoryError):
                raise error


class DaliGpuLoader(DaliLoader):
    """DALI on the GPU: by its JPEG engines if the files are large, else by the request's threads too."""

    decoder = "dali_gpu"
    no_transfer = "It decodes on the device: no decoded pixels are copied."

    def new_library(self) -> ResizingDecoder:
        library, share = super().new_library(), self.request.hw_decoder_load
        if share is not None:
            library.use(share)
        return library

    def not_taken(self) -> str | None:
        """Return the path of a file that DALI does not take; do without the engines if only they fail."""
        found, share = super().not_taken(), self.library.share
        if found is not None and share:
            self.library.use(0.0)
            if super().not_taken() is None:
                return None
            self.library.use(share)
        return found

    def check_device(self, error: RuntimeError) -> None:
        self.library.check_device(error)


class OwnReader(DaliLoader):
    """A loader with DALI's own file reader, and in training its own windows, as in its documentation.

    No other decoder replaces it for files that DALI does not take.
    """

    # augment `dali` needs sample ids, which DALI's reader lacks
    check_transform = StreamingLoader.check_transform

    def not_for_reader(self, path: str) -> None:
        raise Skip(
            f"DALI's own reader leaves no file to another decoder, and {self.decoder} does not take {path}."
        )

    def given_up(self, reason: str) -> None:
        raise GpufeedError(
            f"DALI's own reader found {reason}",
            "files that DALI takes, as they were when the loader was opened",
            "prepare the dataset again, or use dali_cpu, which leaves files to other decoders",
        )

    def new_reading(self) -> OwnReading:
        from gpufeed.loaders.dali_own_reader import OwnReading

        reading = OwnReading(self.request, self.library.pipeline, self.reader.paths, self.share)
        reading.follow(self.planned(self.order(), self.epoch))
        return reading


class DaliCpuReaderLoader(OwnReader, DaliCpuLoader):
    """dali_cpu with DALI's own reader."""


class DaliGpuReaderLoader(OwnReader, DaliGpuLoader):
    """dali_gpu with DALI's own reader."""


def what_dali_says(error: RuntimeError) -> str:
    """Return the message in an error of DALI, which follows the place in its code."""
    lines = [line.strip() for line in str(error).rpartition("encountered:")[2].splitlines()]
    return next((line for line in lines if line), "an error without a message")


def png(image: np.ndarray) -> bytes:
    """Encode a uint8 (H, W, 3) image as a PNG with little compression."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
