"""simplejpeg, on one core: a thin wrapper of libjpeg-turbo."""

import numpy as np

from gpufeed.decoders.base import EXACT
from gpufeed.decoders.encoded_file import JPEG_KINDS, read_header
from gpufeed.decoders.fallback import SingleDecoder
from gpufeed.decoders.pillow import reduced_size


class SimpleJpegDecoder(SingleDecoder):
    """Half of Pillow's time for a JPEG of 64 x 64 pixels; strict, so that a damaged file goes to Pillow."""

    name = "simplejpeg"
    needs = {"simplejpeg": "simplejpeg"}  # noqa: RUF012
    takes = JPEG_KINDS
    tolerance = EXACT  # on 1,110 real JPEGs, simplejpeg 1.9.0 against Pillow 13.0.0

    def decode_one(self, data: bytes) -> np.ndarray | None:
        try:
            return self.library.decode_jpeg(data)  # (H, W, 3)
        except ValueError:
            return None

    def decode_reduced(self, data: bytes, factor: int) -> np.ndarray | None:
        header = read_header(data)
        if header is None or header.kind not in self.takes:
            return None
        height, width = reduced_size(header.height, header.width, factor)
        try:
            image = self.library.decode_jpeg(data, min_height=height, min_width=width, min_factor=factor)
        except ValueError:
            return None
        return image if image.shape[:2] == (height, width) else None


def decode_jpeg(data, fancy: bool, out: np.ndarray | None = None) -> np.ndarray:
    """Decode one JPEG to uint8 RGB (rows, W, 3), grayscale expanded; raise ValueError at the first warning.

    fancy: libjpeg's default, which smooths subsampled colour over neighbouring rows; False repeats pixels.
    """
    import simplejpeg

    return simplejpeg.decode_jpeg(data, "RGB", fastupsample=not fancy, buffer=out, strict=True)
