"""Images whose colours are their coordinates, and the windows that crops of them show.

A library that draws its own random windows is asked for crops of such images: the colours say from where.
"""

import io
from dataclasses import dataclass

import numpy as np
from PIL import Image

LOW, HIGH = 16, 240  # away from 0 and 255, where a decoder's rounding is clipped
NOISE = 2  # steps from the least to the most: rounding, by coders and filters too, then has no bias
EDGE = 16  # this part of a crop is not read on each side: a filter sees no pixels beyond the window


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

    The pixel at x has red LOW + (HIGH - LOW) * (x + 0.5) / width in the mean: noise decides the rounding.
    Blue falls as red grows: half of their difference says x, without what a decoder adds to both. (The fast
    transform of libjpeg-turbo makes both 1.2 steps darker, which is 1.7 pixels of 320, and green none.)
    """
    noise = np.random.default_rng(0).random((height, width, 3)) * NOISE - (NOISE - 1) / 2
    rows, columns = (LOW + (HIGH - LOW) * (np.arange(side) + 0.5) / side for side in (height, width))
    means = np.broadcast_arrays(columns, rows[:, None], LOW + HIGH - columns)
    return (np.stack(means, axis=-1) + noise).astype(np.uint8)  # whole parts


def coordinate_jpeg(height: int, width: int) -> bytes:
    """Return a coordinate image as a file that keeps its colours."""
    buffer = io.BytesIO()
    Image.fromarray(coordinate_image(height, width)).save(buffer, "JPEG", quality=100, subsampling="4:4:4")
    return buffer.getvalue()


def read_windows(crops: np.ndarray) -> ReadWindows:
    """Return the windows that crops of coordinate images show, by a line fitted to their colours.

    crops: (n, rows, columns, 3), resized from windows of 16 pixels or more a side. From JPEGs of 256 to 1,024
    pixels a side, edges are found to a sixth of a pixel in the mean (root of squares), half a pixel at most.
    """
    red, blue = (crops[..., channel].mean(axis=1, dtype=np.float64) for channel in (0, 2))
    left, right = fitted((red - blue + LOW + HIGH) / 2)
    top, bottom = fitted(crops[..., 1].mean(axis=2, dtype=np.float64))
    return ReadWindows(top, np.minimum(left, right), bottom - top, np.abs(right - left), right < left)


def fitted(colours: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the coordinates at both ends of a row, each (n,), of its colours (n, pixels)."""
    count = colours.shape[1]
    inner = np.arange(count // EDGE, count - count // EDGE)
    slope, start = np.polyfit((inner + 0.5) / count, colours[:, inner].T, 1)
    return (start - LOW) / (HIGH - LOW), (start + slope - LOW) / (HIGH - LOW)
