"""SPDL with threads of the training process that each read and decode whole batches.

FFmpeg decodes, without the interpreter's lock. `workers` are its threads, 0 for one a core; `prefetch_factor`
is how many batches wait at its end. That is MT in the words of SPDL's documentation ("Execution Models"),
which for production recommends MTP, the same threads in a process of their own.
"""

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import version

import numpy as np
import torch

from gpufeed.data.resize import resized
from gpufeed.decode.base import Tolerance
from gpufeed.decode.files import read_file
from gpufeed.decode.header import JPEG_END, JPEG_START
from gpufeed.decode.tally import Tally
from gpufeed.errors import GpufeedError, Skip
from gpufeed.loaders.ahead import AheadLoader
from gpufeed.loaders.base import Batch, LoadRequest
from gpufeed.loaders.peers import imported
from gpufeed.loaders.samples import STUCK_S, Samples
from gpufeed.loaders.transfer import empty_batch, send, upload

WAITING = 3  # batches at the end of the pipeline, as SPDL's add_sink has it by itself
NAME = "spdl"


class Ffmpeg:
    """SPDL's decoder as the equivalence gate wants to know it, for one size of image.

    FFmpeg repeats chroma samples where libjpeg interpolates: with libavcodec 59 up to 135 off, and 10.0 in
    the mean over an image (1.6 over all), in 22,200 images of Tiny ImageNet.
    """

    name = NAME
    tolerance = Tolerance(160, 12.0)

    def __init__(self):
        """Raises Skip if this node lacks SPDL, or the libraries of FFmpeg that it loads."""
        for module, package in (("spdl.pipeline", "spdl-core"), ("spdl.io", "spdl-io")):
            imported(NAME, module, package)
        import spdl.io

        self.io = spdl.io
        try:
            # by itself FFmpeg fills up what is missing of a file with gray
            self.options = spdl.io.decode_config(decoder_options={"err_detect": "explode"})
        except RuntimeError as error:
            raise Skip(
                "Loader spdl needs FFmpeg's shared libraries (version 4 to 8), which this node lacks: "
                "install Debian's or conda's package ffmpeg, or name their folder in LD_LIBRARY_PATH."
            ) from error
        self.filters = spdl.io.get_video_filter_desc(pix_fmt="rgb24")
        self.kept = threading.local()  # a thread's graphs: to make one takes longer than to decode an image

    def version(self) -> str:
        """SPDL's version, and that of FFmpeg's decoders."""
        from spdl.io.utils import get_ffmpeg_versions

        codec = ".".join(map(str, get_ffmpeg_versions()["libavcodec"]))
        return f"spdl {version('spdl-io')}, libavcodec {codec}"

    def decode(self, data: bytes, size: tuple[int, int] | None = None):
        """The frame of an encoded image, RGB; None where FFmpeg refuses it, or a JPEG has no end.

        size: (height, width); an image of any other is None, too.
        """
        if data.startswith(JPEG_START) and not data.endswith(JPEG_END):
            return None
        try:
            packets = self.io.demux_image(data)
            if size is not None:
                frame = self.io.decode_packets(packets, filter_desc=None, decode_config=self.options)
                # a kept graph would scale another size to its own
                return self._rgb(frame, size) if (frame.height, frame.width) == size else None
            frame = self.io.decode_packets(packets, filter_desc=self.filters, decode_config=self.options)
            return frame if frame.height > 0 else None  # -1: nothing came of the packets
        except (RuntimeError, IndexError, ValueError):  # what its C++ raises
            return None

    def _rgb(self, frame, size: tuple[int, int]):
        """A decoded frame through the graph that this thread keeps for such frames: a video of one frame."""
        graphs, kind = self.kept.__dict__, f"{size[1]}x{size[0]}:pix_fmt={frame.pix_fmt}"
        graph = graphs.pop(kind, None) or self.io.FilterGraph(
            f"buffer=video_size={kind}:time_base=1/25:pixel_aspect=1/1,{self.filters},buffersink"
        )
        graph.add_frames(frame)
        frames = graph.get_frames()
        graphs[kind] = graph  # not one that has raised
        return frames

    def pixels(self, frames: list) -> np.ndarray:
        """Frames of one size, uint8 (n, H, W, 3)."""
        return self.io.to_numpy(self.io.convert_frames(frames))


@dataclass
class Made:
    """One batch in (pinned) host memory. left: how many of its images FFmpeg left to Pillow."""

    images: torch.Tensor
    left: int


class SpdlLoader(AheadLoader):
    """The batches of a pipeline of SPDL's, copied ahead on a side stream as its documentation does it.

    What FFmpeg refuses Pillow decodes, and counts as left to it.
    """

    no_decoding = None

    def __init__(self, request: LoadRequest):
        super().__init__(request)
        self.samples = Samples(request)
        self.labels = request.manifest.labels()
        self.library: Ffmpeg | None = None
        self.tally = Tally(NAME)

    @cached_property
    def paths(self) -> list[str]:
        """Of all files, by sample id."""
        return [str(path) for path in self.request.manifest.paths()]

    def open(self) -> None:
        super().open()
        self.library = Ffmpeg()

    def files(self) -> list[str]:
        return self.files_of_split()

    def source(self, order: np.ndarray, stopping: threading.Event) -> Iterator[Batch]:
        return self._made(order, self.epoch)

    def _made(self, order: np.ndarray, epoch: int) -> Iterator[Batch]:
        r = self.request
        ids, labels = send(order, r.device), send(self.labels[order], r.device)
        start = 0
        for made in self._run([*batches_of(order, r.batch_size)], epoch):
            self.tally.add(NAME, len(made.images) - made.left)
            self.tally.add("pillow", made.left)
            images, transfer = upload(made.images, r.device)
            end = start + len(images)
            yield Batch(images, labels[start:end], ids[start:end], 0.0, transfer)
            start = end

    def _run(self, parts: list[np.ndarray], epoch: int) -> Iterator[Made]:
        """Each part decoded, in their order, by a pipeline that ends with this iterator."""
        from spdl.pipeline import PipelineBuilder

        threads = self.request.workers or self.request.threads
        pipeline = (
            PipelineBuilder()
            .add_source(parts)
            .pipe(partial(self._attempt, epoch=epoch), concurrency=threads, output_order="input")
            .add_sink(self.request.prefetch_factor or WAITING)
            .build(num_threads=threads)
        )
        with pipeline.auto_stop():
            done = pipeline.get_iterator(timeout=STUCK_S)
            for _ in parts:
                try:
                    made = next(done)
                except TimeoutError as error:
                    raise stuck(threads) from error
                if isinstance(made, Exception):
                    raise made
                yield made

    def _attempt(self, ids: np.ndarray, epoch: int) -> Made | Exception:
        """A batch, or what stopped it: SPDL would log an error and leave the batch out."""
        on_cuda = self.request.device.type == "cuda"
        try:
            with torch.cuda.device(self.request.device) if on_cuda else nullcontext():  # a thread has its own
                return self._batch(ids, epoch)
        except Exception as error:
            return error

    def _batch(self, ids: np.ndarray, epoch: int) -> Made:
        """Reads and decodes the files of one batch; runs in a thread of the pipeline."""
        images, left = self._decoded(ids)
        transform = self.request.sample_transform
        if transform is not None:
            made = [transform(image, i, epoch) for image, i in zip(images, ids.tolist(), strict=True)]
            images = empty_batch((len(ids), *made[0].shape), made[0].dtype, torch.device("cpu"), self.request)
            torch.stack(made, out=images)
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


def batches_of(order: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """The ids of each batch."""
    for start in range(0, len(order), size):
        yield order[start : start + size]


def stuck(threads: int) -> GpufeedError:
    """What is wrong when no batch came for STUCK_S."""
    return GpufeedError(
        f"no batch from SPDL's pipeline for {STUCK_S} s",
        f"{threads} threads at work",
        "look for a dead network mount, a disk that hangs, and at the load of the node",
    )
