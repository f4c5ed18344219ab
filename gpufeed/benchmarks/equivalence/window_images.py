"""Images whose colours are their coordinates, to find the windows of crops.

A library that draws its own random windows crops such images: the colours tell where.
"""

import io
from dataclasses import dataclass

import numpy as np
from PIL import Image

LOW, HIGH = 16, 240  # away from 0 and 255, where values are clipped
NOISE = 2  # range of the dither, in steps: rounding by codecs and filters then has no bias
EDGE = 16  # 1/EDGE of a crop is ignored on each side, where the filter reaches the border


@dataclass(frozen=True)
class ReadWindows:
    """Windows as shares of their image's height and width, each (n,); flip: mirrored left to right."""

    top: np.ndarray
    left: np.ndarray
    height: np.ndarray
    width: np.ndarray
    flip: np.ndarray


def coordinate_image(height: int, width: int) -> np.ndarray:
    """Return an image whose red grows with x and whose green grows with y, uint8 (height, width, 3).

    The mean red of the pixel at x is LOW + (HIGH - LOW) * (x + 0.5) / width; noise decides the rounding. Blue
    falls as red grows, so half of their difference gives x without an offset of the decoder. (The fast
    transform of libjpeg-turbo makes both 1.2 steps darker, which is 1.7 pixels of 320, but not green.)
    """
    noise = np.random.default_rng(0).random((height, width, 3)) * NOISE - (NOISE - 1) / 2
    rows, columns = (LOW + (HIGH - LOW) * (np.arange(side) + 0.5) / side for side in (height, width))
    means = np.broadcast_arrays(columns, rows[:, None], LOW + HIGH - columns)
    return (np.stack(means, axis=-1) + noise).astype(np.uint8)  # whole parts


def coordinate_jpeg(height: int, width: int) -> bytes:
    """Return a coordinate image as a JPEG file that keeps its colours."""
    buffer = io.BytesIO()
    Image.fromarray(coordinate_image(height, width)).save(buffer, "JPEG", quality=100, subsampling="4:4:4")
    return buffer.getvalue()


def read_windows(crops: np.ndarray) -> ReadWindows:
    """Return the windows of crops of coordinate images, by a line fitted to their colours.

    crops: (n, rows, columns, 3), resized from windows of at least 16 pixels a side. From JPEGs of 256 to
    1,024 pixels a side, edges are off by a sixth of a pixel (root mean square), at most half a pixel.
    """
    red, blue = (crops[..., channel].mean(axis=1, dtype=np.float64) for channel in (0, 2))
    left, right = fitted((red - blue + LOW + HIGH) / 2)
    top, bottom = fitted(crops[..., 1].mean(axis=2, dtype=np.float64))
    return ReadWindows(top, np.minimum(left, right), bottom - top, np.abs(right - left), right < left)


def fitted(colours: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the coordinates at both ends of rows, each (n,), from their colours (n, pixels)."""
    count = colours.shape[1]
    inner = np.arange(count // EDGE, count - count // EDGE)
    slope, start = np.polyfit((inner + 0.5) / count, colours[:, inner].T, 1)
    return (start - LOW) / (HIGH - LOW), (start + slope - LOW) / (HIGH - LOW)
