"""A small strip, to find out whether a GPU can decode any."""

import io

import numpy as np
from PIL import Image

from gpufeed.decoders.jpeg_parser import parse
from gpufeed.decoders.strip_joiner import join
from gpufeed.stores.strips_store import Strip


def trial_strip() -> tuple[np.ndarray, Strip]:
    """The bytes of a strip of two grey images of 64 x 64 pixels, 4:2:0, and what it holds."""
    buffer = io.BytesIO()
    Image.fromarray(np.full((64, 64, 3), 128, np.uint8)).save(buffer, "JPEG", subsampling="4:2:0")
    jpeg = parse(buffer.getvalue())
    data = np.frombuffer(bytearray(join([jpeg, jpeg])), np.uint8)
    return data, Strip(0, len(data), "trial", 64, 64, 3, jpeg.kind.sampling, np.arange(2))
