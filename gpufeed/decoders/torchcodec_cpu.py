"""torchcodec, on one core."""

from types import ModuleType

import numpy as np

from gpufeed.core.errors import Skip
from gpufeed.decoders.base import EXACT
from gpufeed.decoders.encoded_file import JPEG_KINDS, without_exif
from gpufeed.decoders.fallback import SingleDecoder

TORCHCODEC = "torchcodec of the CUDA 13 stack"  # it is built against torch 2.11 and newer, of CUDA 13


class TorchcodecCpuDecoder(SingleDecoder):
    """libjpeg-turbo behind torchcodec's decode_jpeg, without its rotation by Exif tags."""

    name = "torchcodec_cpu"
    needs = {"simplejpeg": "simplejpeg", "torchcodec": TORCHCODEC}  # noqa: RUF012
    takes = JPEG_KINDS
    by_torch = True
    tolerance = EXACT  # on 800 real JPEGs, torchcodec 0.17.0 against Pillow 12.3.0

    def __init__(self, threads: int = 1):
        super().__init__(threads)
        require_decode_jpeg(self.name, self.library)

    def decode_one(self, data: bytes) -> np.ndarray | None:
        try:
            image = self.library.decoders.decode_jpeg(without_exif(data))  # (3, H, W)
        except RuntimeError:
            return None
        return image.permute(1, 2, 0).contiguous().numpy()  # (H, W, 3)


def require_decode_jpeg(user: str, library: ModuleType) -> None:
    """Raise Skip for a torchcodec too old for decode_jpeg."""
    if not hasattr(library.decoders, "decode_jpeg"):
        raise Skip(f"Decoder {user} needs torchcodec 0.16 or newer, and this node has {library.__version__}.")
