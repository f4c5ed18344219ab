"""A dataset's .beton file, in FFCV's format of version 2, and its sidecar, which is written last.

The file has a header, fields, a row for each sample, pages of data and a table of the data.
Source: ffcv/types.py, ffcv/writer.py and ffcv/memory_allocator.py of FFCV 1.0.2. FFCV's own writer re-encodes
images, must be installed on the node that prepares a dataset, and hangs if a worker dies.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import cv2
import numpy as np

from gpufeed.datasets.manifest import Manifest
from gpufeed.decoders.base import Tolerance
from gpufeed.stores.base import StoreInfo
from gpufeed.system import random_draws

PAGE = 2**23  # bytes, FFCV's default; the data of a sample lie in one page
JPEG, PIXELS = 0, 1  # of a row's mode
HEADER = np.dtype(
    [
        ("version", "<u2"),
        ("fields", "<u2"),
        ("page", "<u4"),
        ("samples", "<u8"),
        ("table", "<u8"),  # offset of the table of the data
    ],
    align=True,
)
FIELD = np.dtype([("type", "u1"), ("name", "S16"), ("arguments", "u1", 1024)])
IMAGE = np.dtype([("mode", "u1"), ("width", "<u2"), ("height", "<u2"), ("place", "<u8")])
ROW = np.dtype([("image", IMAGE), ("label", "<i8")], align=True)
PLACED = np.dtype([("sample", "<u8"), ("place", "<u8"), ("size", "<u8")])
FIELDS = np.array([(2, "image", 0), (1, "label", 0)], dtype=FIELD)  # an RGBImageField and an IntField


def page_for(pixels: int) -> int:
    """Return the bytes of a page that holds an image of so many bytes, a power of two."""
    return max(PAGE, 1 << (pixels - 1).bit_length())


class Stored(NamedTuple):
    """An image of a file: mode is JPEG or PIXELS."""

    mode: int
    height: int
    width: int
    data: bytes


def write_beton(path: Path, samples: Iterable[Stored], labels: np.ndarray, page: int) -> int:
    """Write a file of images; return how many of them are JPEGs.

    samples: by their ids, at most `page` bytes each. labels: int64 (n,). page: bytes.
    """
    rows, placed = np.zeros(len(labels), dtype=ROW), np.zeros(len(labels), dtype=PLACED)
    rows["label"] = labels
    end = aligned(HEADER.itemsize + FIELDS.nbytes + rows.nbytes, page)
    with path.open("wb") as file:
        for sample, (mode, height, width, data) in enumerate(samples):
            place = end if end % page + len(data) <= page else aligned(end, page)
            end = place + len(data)
            file.seek(place)
            file.write(data)
            rows["image"][sample] = mode, width, height, place
            placed[sample] = sample, place, len(data)
        end = aligned(end, page)
        file.seek(end)
        file.write(placed.tobytes())
        file.seek(0)
        file.write(np.array((2, len(FIELDS), page, len(rows), end), dtype=HEADER).tobytes())
        file.write(FIELDS.tobytes() + rows.tobytes())
    return int((rows["image"]["mode"] == JPEG).sum())


def aligned(place: int, page: int) -> int:
    """Return the first start of a page at or after a place."""
    return -(-place // page) * page


# What FFCV recommends for a ResNet-50 on ImageNet: 500 pixels at most, half of the images as JPEGs.
# Source: README of github.com/libffcv/ffcv-imagenet, "Dataset setup"; the quality is its writer's default.
MAX_RESOLUTION, JPEG_SHARE, QUALITY = 500, 0.5, 90
FORM_DRAW = 1  # of a sample; 0 chooses the samples that the equivalence check compares


def rewritten(sample_id: int, image: np.ndarray) -> Stored:
    """Return uint8 (H, W, 3) as FFCV's writer stores it with its settings for ImageNet.

    Its long side has at most MAX_RESOLUTION pixels, by OpenCV's INTER_AREA. FFCV decides at random whether it
    stores a JPEG or pixels; here the sample id decides. Source: ffcv/fields/rgb_image.py.
    """
    height, width = image.shape[:2]
    ratio = MAX_RESOLUTION / max(height, width)
    if ratio < 1:
        height, width = (max(1, int(ratio * side)) for side in (height, width))
        image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    draw = random_draws.draw(random_draws.sample_state(0, 0, sample_id), FORM_DRAW)
    if not random_draws.chance(draw, JPEG_SHARE):
        return Stored(PIXELS, height, width, image.tobytes())
    bgr = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
    _, data = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
    return Stored(JPEG, height, width, data.tobytes())


# FFCV uses libjpeg-turbo's fast transform. Its error in 22,000 images of Tiny ImageNet is at most 6, and at
# most 1.9 in the mean over an image (0.95 over all); up to 13 in synthetic ones of quality 95, 90 in noise of
# 100.
TOLERANCE = Tolerance(16, 3.0)


@dataclass(frozen=True, kw_only=True)
class BetonInfo(StoreInfo):
    """What the sidecar says. jpegs: samples that are JPEGs, the others are pixels.

    size: of the .beton file, in bytes. max_resolution: the long side in pixels to which larger images were
    scaled down before they were encoded again; None if JPEGs are the unchanged files.
    """

    word: ClassVar[str] = "the .beton file"

    count: int
    jpegs: int
    size: int
    sha256: str
    max_resolution: int | None = None

    @property
    def in_words(self) -> str | None:
        """Return a description of how the images were changed; None if they were not."""
        if self.max_resolution is None:
            return None
        return (
            f"a file with long sides of at most {self.max_resolution} pixels, {self.jpegs:,} of "
            f"{self.count:,} images as JPEGs of quality {QUALITY} and the others as pixels"
        )


def open_beton(path: str | Path, manifest: Manifest) -> BetonInfo:
    """Read the sidecar of the file `path`; raise GpufeedError unless its size and manifest are right."""
    path = Path(path)
    info = BetonInfo.read_for(path, manifest)
    info.check_size(path, info.size)
    return info


def verify_bytes(path: str | Path, manifest: Manifest, alive: Callable[[], None] = lambda: None) -> None:
    """Read the whole file; raise GpufeedError unless its sha256 is that in the sidecar.

    alive: as in `sha256_of`.
    """
    info = open_beton(path, manifest)
    info.check_bytes(Path(path), info.sha256, alive)
