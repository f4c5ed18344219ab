"""FFCV's file format, version 2: header, fields, a row for each sample, pages of data, a table of the data.

Source: ffcv/types.py, ffcv/writer.py and ffcv/memory_allocator.py of FFCV 1.0.2, whose own writer encodes
images anew, needs FFCV on the node that prepares a dataset, and waits for ever for a worker that has died.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

PAGE = 2**23  # bytes: FFCV's own; data of one sample lie in one page
JPEG, PIXELS = 0, 1  # of a row's mode
HEADER = np.dtype(
    [
        ("version", "<u2"),
        ("fields", "<u2"),
        ("page", "<u4"),
        ("samples", "<u8"),
        ("table", "<u8"),  # where the table of the data stands
    ],
    align=True,
)
FIELD = np.dtype([("type", "u1"), ("name", "S16"), ("arguments", "u1", 1024)])
IMAGE = np.dtype([("mode", "u1"), ("width", "<u2"), ("height", "<u2"), ("place", "<u8")])
ROW = np.dtype([("image", IMAGE), ("label", "<i8")], align=True)
PLACED = np.dtype([("sample", "<u8"), ("place", "<u8"), ("size", "<u8")])
FIELDS = np.array([(2, "image", 0), (1, "label", 0)], dtype=FIELD)  # an RGBImageField and an IntField


def page_for(pixels: int) -> int:
    """Bytes of a page in which an image of so many bytes has room: a power of two."""
    return max(PAGE, 1 << (pixels - 1).bit_length())


def write(
    path: Path, samples: Iterable[tuple[int, bytes]], labels: np.ndarray, size: tuple[int, int], page: int
) -> int:
    """Writes a file of images of one size, (height, width); returns how many of them are JPEGs.

    samples: (JPEG or PIXELS, the data) of each sample by its id, at most `page` bytes each.
    labels: int64 (n,). page: bytes.
    """
    rows, placed = np.zeros(len(labels), dtype=ROW), np.zeros(len(labels), dtype=PLACED)
    rows["label"], rows["image"]["height"], rows["image"]["width"] = labels, *size
    end = aligned(HEADER.itemsize + FIELDS.nbytes + rows.nbytes, page)
    with path.open("wb") as file:
        for sample, (mode, data) in enumerate(samples):
            place = end if end % page + len(data) <= page else aligned(end, page)
            end = place + len(data)
            file.seek(place)
            file.write(data)
            rows["image"]["mode"][sample], rows["image"]["place"][sample] = mode, place
            placed[sample] = sample, place, len(data)
        end = aligned(end, page)
        file.seek(end)
        file.write(placed.tobytes())
        file.seek(0)
        file.write(np.array((2, len(FIELDS), page, len(rows), end), dtype=HEADER).tobytes())
        file.write(FIELDS.tobytes() + rows.tobytes())
    return int((rows["image"]["mode"] == JPEG).sum())


def aligned(place: int, page: int) -> int:
    """The first start of a page from a place on."""
    return -(-place // page) * page
