"""FFmpeg as SPDL brings it: an encoded image to a frame, frames to pixels, without the interpreter's lock."""

import threading
from importlib.metadata import version

import numpy as np

from gpufeed.core.errors import Skip
from gpufeed.decoders.base import Tolerance
from gpufeed.decoders.file_header import JPEG_END, JPEG_START
from gpufeed.loaders.peer_packages import imported

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
