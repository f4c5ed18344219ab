"""nvImageCodec on the CPU: one call decodes on its own threads and returns None for a bad image."""

import contextlib

import numpy as np

from gpufeed.decoders.base import EXACT
from gpufeed.decoders.fallback import FallbackDecoder

NEEDS = {"simplejpeg": "simplejpeg", "nvidia.nvimgcodec": "nvidia-nvimgcodec-cu12 or nvidia-nvimgcodec-cu13"}
OPTIONS = ":fancy_upsampling=1"  # backends that can interpolate chroma as libjpeg does


class NvImageCodecCpuDecoder(FallbackDecoder):
    """The library's CPU backend (libjpeg-turbo, OpenCV's PNG), without a GPU or a driver."""

    name = "nvimgcodec_cpu"
    needs = NEEDS
    parallel = "own threads"
    tolerance = EXACT  # on 1,110 real JPEGs, nvImageCodec 0.9.0 against Pillow 13.0.0

    def __init__(self, threads: int = 1):
        super().__init__(threads)
        self.codec = self.library.Decoder(
            device_id=self.library.NVIMGCODEC_DEVICE_CPU_ONLY,
            max_num_cpu_threads=threads,
            backends=[self.library.Backend(self.library.CPU_ONLY)],
            options=OPTIONS,
        )

    def decode_taken(self, files: list[bytes]) -> list[np.ndarray | None]:
        images = decode_streams(self.library, self.codec, files)
        return [None if image is None else np.asarray(image) for image in images]  # each keeps its image


def decode_streams(library, codec, files: list[bytes], **options) -> list:
    """Return an nvimgcodec.Image, interleaved RGB, or None for each file. options: of Decoder.decode."""
    params = library.DecodeParams(
        apply_exif_orientation=False, color_spec=library.SRGB, sample_format=library.I_RGB
    )
    streams = {}
    for i, data in enumerate(files):
        with contextlib.suppress(RuntimeError):  # it cannot read the header
            streams[i] = library.CodeStream(data)
    images = codec.decode(list(streams.values()), params=params, **options) if streams else []
    found = dict(zip(streams, images, strict=True))
    return [found.get(i) for i in range(len(files))]
