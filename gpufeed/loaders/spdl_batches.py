"""One batch of the loader spdl: its files read and decoded, in whatever thread asks for it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from gpufeed.core.errors import GpufeedError
from gpufeed.decoders.file_bytes import read_file
from gpufeed.decoders.resize import resized
from gpufeed.loaders.base import LoadRequest
from gpufeed.loaders.batch_transfer import empty_batch
from gpufeed.loaders.samples import Samples
from gpufeed.loaders.spdl_ffmpeg import Ffmpeg


@dataclass(frozen=True)
class Part:
    """What becomes one batch. ids: int64 (n,)."""

    ids: np.ndarray
    epoch: int


@dataclass
class Made:
    """One batch in (pinned) host memory. left: how many of its images FFmpeg left to Pillow."""

    images: torch.Tensor
    left: int


def on_device(request: LoadRequest) -> AbstractContextManager:
    """Within it the request's device is this thread's: each thread begins with CUDA's first."""
    return torch.cuda.device(request.device) if request.device.type == "cuda" else nullcontext()


class BatchMaker:
    """Makes batches in the process that has opened it. What FFmpeg refuses Pillow decodes."""

    def __init__(self, request: LoadRequest):
        self.request = request
        self.samples = Samples(request)
        self.library: Ffmpeg | None = None

    def open(self) -> None:
        """Raises Skip if this node lacks SPDL or FFmpeg."""
        self.library = Ffmpeg()

    @cached_property
    def paths(self) -> list[str]:
        """Of all files, by sample id."""
        return [str(path) for path in self.request.manifest.paths()]

    def attempt(self, part: Part) -> Made | Exception:
        """A batch, or what stopped it: SPDL would log an error and leave the batch out."""
        try:
            with on_device(self.request):
                return self.made(part)
        except SystemExit as error:  # it would end the thread, and nobody would hear of it
            return GpufeedError(
                f"a transform of samples that ends its thread (SystemExit: {error})",
                "an image from it",
                "let it raise what is wrong",
            )
        except Exception as error:
            return error

    def made(self, part: Part) -> Made:
        """The batch: uint8 (n, H, W, 3), or what the request's sample transform makes of it.

        Raises GpufeedError naming a bad file.
        """
        images, left = self._decoded(part.ids)
        transform = self.request.sample_transform
        if transform is not None:
            pairs = zip(images, part.ids.tolist(), strict=True)
            done = [transform(image, sample_id, part.epoch) for image, sample_id in pairs]
            shape = (len(part.ids), *done[0].shape)
            images = empty_batch(shape, done[0].dtype, torch.device("cpu"), self.request)
            torch.stack(done, out=images)
        return Made(images, left)

    def _decoded(self, ids: np.ndarray) -> tuple[torch.Tensor, int]:
        """uint8 (n, H, W, 3), and how many FFmpeg left to Pillow; raises GpufeedError naming a bad file."""
        out = empty_batch((len(ids), *self.samples.shape), torch.uint8, torch.device("cpu"), self.request)
        rows, found = out.numpy(), [read_file(self.paths[i]) for i in ids.tolist()]
        if self.request.decoded is not None:
            rows[:] = self.request.decoded[ids % len(self.request.decoded)]
            return out, 0
        frames = [self._frame(data) for data in found]
        taken = [place for place, frame in enumerate(frames) if frame is not None]
        if self.samples.resize:
            for place in taken:
                rows[place] = resized(self.library.pixels([frames[place]])[0], self.samples.resize)
        elif taken:
            places = taken if len(taken) < len(ids) else slice(None)
            pixels = self.library.pixels([frames[place] for place in taken])
            rows[places] = pixels.reshape(-1, *self.samples.shape)  # images, or videos of one
        others = [place for place, frame in enumerate(frames) if frame is None]
        for place in others:
            rows[place] = self.samples.read(int(ids[place]), found[place])
        return out, len(others)

    def _frame(self, data: bytes):
        """A frame of the manifest's size, or of any where it will be resized; None of any other."""
        return self.library.decode(data, None if self.samples.resize else self.samples.shape[:2])


def parts_of(order: np.ndarray, epoch: int, size: int) -> Iterator[Part]:
    """Each `size` of the ids in `order`, and a last part with the rest."""
    for start in range(0, len(order), size):
        yield Part(order[start : start + size], epoch)
