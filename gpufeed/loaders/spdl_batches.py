"""Make one batch of the loader spdl: read and decode its files in the calling thread.

FFmpeg, through SPDL, works without the GIL: it decodes an image to a frame, crops a recipe's window, resizes
it, and converts a batch's frames to pixels.
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version

import numpy as np
import torch

from gpufeed.augment.random_resized_crop import Window
from gpufeed.core.errors import GpufeedError, Skip, import_or_skip
from gpufeed.decoders.base import Tolerance
from gpufeed.decoders.encoded_file import JPEG_END, JPEG_START, read_file
from gpufeed.decoders.pillow import resized
from gpufeed.loaders.base import LoadRequest, empty_batch
from gpufeed.loaders.samples import Samples

NAME = "spdl"
# log2 of luma per chroma samples, horizontally and vertically; 0 for all other formats.
SUBSAMPLED = {"yuvj420p": (1, 1), "yuvj422p": (1, 0), "yuvj440p": (0, 1), "yuvj411p": (2, 0)}
# FFmpeg's "bilinear" is a triangle that widens as the image shrinks. Without the other flags it rounds
# earlier and uses every second chroma sample.
SCALING = "bilinear+accurate_rnd+full_chroma_int+full_chroma_inp"


@dataclass(frozen=True)
class Crop:
    """A window as FFmpeg's filters. size: rows and columns of a sample."""

    window: Window
    size: int

    def filters(self, pix_fmt: str) -> str:
        """Return the filters for a frame of this format, without the conversion to RGB."""
        w, (across, down) = self.window, SUBSAMPLED.get(pix_fmt, (0, 0))
        filters = [
            f"crop={w.width}:{w.height}:{w.left}:{w.top}:exact=1",
            f"scale={w.columns}:{w.rows}:flags={SCALING}"
            f":in_h_chr_pos={chroma_place(w.left, across)}:in_v_chr_pos={chroma_place(w.top, down)}",
        ]
        if (w.rows, w.columns) != (self.size, self.size):
            filters.append(f"crop={self.size}:{self.size}:{w.first_column}:{w.first_row}:exact=1")
        return ",".join([*filters, "hflip"] if w.flip else filters)


def chroma_place(offset: int, power: int) -> int:
    """Return the place of the first chroma sample after a crop at `offset`, in 1/256 of a pixel, for `scale`.

    A chroma sample of a JPEG lies in the middle of its 2**power pixels. The crop keeps the sample of its
    first pixel; by default `scale` assumes that this pixel is the sample's first, which would shift colours.
    """
    return (2**power - 1) * 128 - 256 * (offset % 2**power)


class Ffmpeg:
    """SPDL's decoder as the equivalence check needs to know it.

    FFmpeg repeats chroma samples where libjpeg interpolates: with libavcodec 59, 22,200 images of Tiny
    ImageNet differed by up to 135, and 10.0 in the mean over an image (1.6 over all).
    """

    name = NAME
    tolerance = Tolerance(160, 12.0)

    def __init__(self):
        """Raise Skip if this node lacks SPDL, or the libraries of FFmpeg that it loads."""
        for module, package in (("spdl.pipeline", "spdl-core"), ("spdl.io", "spdl-io")):
            import_or_skip("Loader spdl", module, package)
        import spdl.io

        self.io = spdl.io
        try:
            # by default FFmpeg fills the missing part of a file with gray
            self.options = spdl.io.decode_config(decoder_options={"err_detect": "explode"})
        except RuntimeError as error:
            raise Skip(
                "Loader spdl needs FFmpeg's shared libraries (version 4 to 8), which this node lacks: "
                "install Debian's or conda's package ffmpeg, or name their folder in LD_LIBRARY_PATH."
            ) from error
        self.filters = spdl.io.get_video_filter_desc(pix_fmt="rgb24")
        self.kept = threading.local()  # graphs of a thread: making one takes longer than decoding an image

    def version(self) -> str:
        """Return the versions of SPDL and of FFmpeg's decoders."""
        from spdl.io.utils import get_ffmpeg_versions

        codec = ".".join(map(str, get_ffmpeg_versions()["libavcodec"]))
        return f"spdl {version('spdl-io')}, libavcodec {codec}"

    def decode(self, data: bytes, size: tuple[int, int] | None = None, crop: Crop | None = None):
        """Return the RGB frame of an encoded image; None if FFmpeg refuses it or a JPEG is cut off.

        size: (height, width); None is also returned for an image of another size. crop: applied to the image.
        """
        if data.startswith(JPEG_START) and not data.endswith(JPEG_END):
            return None
        try:
            packets = self.io.demux_image(data)
            if size is not None and crop is None:
                frame = self.io.decode_packets(packets, filter_desc=None, decode_config=self.options)
                if (frame.height, frame.width) != size:  # a cached graph would scale it to its own size
                    return None
                return self._rgb(frame, size)
            filters = self.filters
            if crop is not None:
                codec = packets.codec
                if (codec.height, codec.width) != size:
                    return None
                filters = f"{crop.filters(codec.pix_fmt)},{filters}"
            # This makes the graph without the GIL, which `FilterGraph` holds, and which is not for filter
            # chains: https://facebookresearch.github.io/spdl/latest/io/advanced_filtering.html
            frame = self.io.decode_packets(packets, filter_desc=filters, decode_config=self.options)
            return frame if frame.height > 0 else None  # -1: the packets held no frame
        except (RuntimeError, IndexError, ValueError, AssertionError):  # its C++; the last: several frames
            return None

    def _rgb(self, frame, size: tuple[int, int]):
        """Convert a decoded frame by this thread's cached graph for its format; return a one-frame video."""
        kind = f"{size[1]}x{size[0]}:pix_fmt={frame.pix_fmt}"
        graphs = self.kept.__dict__
        graph = graphs.pop(kind, None) or self.io.FilterGraph(
            f"buffer=video_size={kind}:time_base=1/25:pixel_aspect=1/1,{self.filters},buffersink"
        )
        graph.add_frames(frame)
        frames = graph.get_frames()
        graphs[kind] = graph  # only if it did not raise
        return frames

    def pixels(self, frames: list) -> np.ndarray:
        """Return the pixels of frames of one size, uint8 (n, H, W, 3)."""
        return self.io.to_numpy(self.io.convert_frames(frames))


@dataclass(frozen=True)
class Part:
    """The samples of one batch. ids: int64 (n,)."""

    ids: np.ndarray
    epoch: int


@dataclass
class Made:
    """One batch in (pinned) host memory. left: how many of its images FFmpeg left to Pillow."""

    images: torch.Tensor
    left: int


def on_device(request: LoadRequest) -> AbstractContextManager:
    """Return a context in which the request's device is current; each thread starts with CUDA's first."""
    return torch.cuda.device(request.device) if request.device.type == "cuda" else nullcontext()


class BatchMaker:
    """Makes batches in the process that has opened it. Pillow decodes files that FFmpeg refuses."""

    def __init__(self, request: LoadRequest):
        self.request = request
        self.samples = Samples(request)
        self.resize = self.samples.resize if request.recipe is None else None
        self.library: Ffmpeg | None = None

    def open(self) -> None:
        """Raise Skip if this node lacks SPDL or FFmpeg."""
        self.library = Ffmpeg()

    @cached_property
    def paths(self) -> list[str]:
        """Paths of all files, by sample id."""
        return [str(path) for path in self.request.manifest.paths()]

    def attempt(self, part: Part) -> Made | Exception:
        """Return a batch or its error, since SPDL would log an error and drop the batch."""
        try:
            with on_device(self.request):
                return self.made(part)
        except SystemExit as error:  # it would end the thread silently
            return GpufeedError(
                f"a transform of samples that ends its thread (SystemExit: {error})",
                "an image from it",
                "let it raise an exception that says what is wrong",
            )
        except Exception as error:
            return error

    def made(self, part: Part) -> Made:
        """Return the batch: uint8 (n, H, W, 3), or the results of the request's sample transform.

        Raises GpufeedError naming a bad file.
        """
        images, left = self._decoded(part)
        transform = self.request.sample_transform
        if transform is not None:
            pairs = zip(images, part.ids.tolist(), strict=True)
            done = [transform(image, sample_id, part.epoch) for image, sample_id in pairs]
            shape = (len(part.ids), *done[0].shape)
            images = empty_batch(shape, done[0].dtype, torch.device("cpu"), self.request)
            torch.stack(done, out=images)
        return Made(images, left)

    def _decoded(self, part: Part) -> tuple[torch.Tensor, int]:
        """Return uint8 (n, H, W, 3) and how many Pillow decoded; raise GpufeedError naming a bad file."""
        ids = part.ids
        out = empty_batch((len(ids), *self.samples.shape), torch.uint8, torch.device("cpu"), self.request)
        rows, found = out.numpy(), [read_file(self.paths[i]) for i in ids.tolist()]
        if self.request.decoded is not None:
            rows[:] = self.request.decoded[ids % len(self.request.decoded)]
            return out, 0
        frames = [self._frame(data, i, part.epoch) for data, i in zip(found, ids.tolist(), strict=True)]
        taken = [place for place, frame in enumerate(frames) if frame is not None]
        if self.resize:
            for place in taken:
                rows[place] = resized(self.library.pixels([frames[place]])[0], self.resize)
        elif taken:
            places = taken if len(taken) < len(ids) else slice(None)
            pixels = self.library.pixels([frames[place] for place in taken])
            rows[places] = pixels.reshape(-1, *self.samples.shape)  # images, or videos of one
        others = [place for place, frame in enumerate(frames) if frame is None]
        for place in others:
            rows[place] = self.samples.read(int(ids[place]), found[place], part.epoch)
        return out, len(others)

    def _frame(self, data: bytes, sample_id: int, epoch: int):
        """Return the frame of a sample, None for a file that FFmpeg refuses or of an unexpected size.

        With a recipe the frame is the sample's window. With `resize` it may have any size.
        """
        recipe = self.request.recipe
        if recipe is None:
            return self.library.decode(data, None if self.resize else self.samples.shape[:2])
        height, width = self.samples.sizes[sample_id].tolist()
        window = recipe.window(sample_id, epoch, height, width)
        return self.library.decode(data, (height, width), Crop(window, recipe.size))


def parts_of(order: np.ndarray, epoch: int, size: int) -> Iterator[Part]:
    """Yield the ids in `order` in parts of `size`, the last one smaller."""
    for start in range(0, len(order), size):
        yield Part(order[start : start + size], epoch)
