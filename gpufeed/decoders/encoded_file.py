"""Reads an image file with few system calls, and from its first and last bytes which decoder can take it."""

import contextlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from PIL import Image

from gpufeed.decoders.base import bad_file

PIECE = 64 * 2**10  # bytes asked for at first: most small images come whole
MOST_BYTES = 2**29  # of one image: Pillow takes no more pixels than those of 8-bit RGB, uncompressed
LOOKED_AT = 256  # files whose sizes stand for all


def read_file(path: str) -> bytes:
    """A whole file by open, read and close: Path.read_bytes makes a file object and asks for the size too.

    Raises GpufeedError if it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(descriptor, PIECE)
            if len(data) < PIECE:  # a regular file gives less than was asked for at its end only
                return data
            pieces = [data]
            while data := os.read(descriptor, os.fstat(descriptor).st_size):
                pieces.append(data)
            return b"".join(pieces)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise bad_file(path, error.strerror or str(error)) from error


def mean_size(paths: list[str]) -> float:
    """Bytes of a file in the mean, of at most LOOKED_AT of them all along the list; 0 if none can be read."""
    sizes = []
    for path in paths[:: max(1, -(-len(paths) // LOOKED_AT))]:
        with contextlib.suppress(OSError):  # whoever reads it will name it
            sizes.append(os.path.getsize(path))
    return sum(sizes) / len(sizes) if sizes else 0.0


JPEG_START, JPEG_END = b"\xff\xd8", b"\xff\xd9"
PNG_START, PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"


@dataclass(frozen=True)
class Header:
    """kind: "jpeg" and its colour space as libjpeg names it, or "png" and its bits a channel."""

    kind: str
    height: int
    width: int


EXIF = b"Exif\0\0"  # behind marker APP1 and a length. Source: Exif 2.32, 4.7.2
APP1, APP15, SCAN = 0xE1, 0xEF, 0xDA


def without_exif(data: bytes) -> bytes:
    """Return a JPEG whose Exif data has another marker, APP15, for libraries that turn images as it says."""
    found = [place for marker, place in segments(data) if marker == APP1 and data.startswith(EXIF, place + 4)]
    if found:
        changed = bytearray(data)
        for place in found:
            changed[place + 1] = APP15
        return bytes(changed)
    return data


SCALED_GRAY = "jpeg Gray with sampling factors"
# What nvJPEG decodes. On an H200 its JPEG engines gave wrong pixels, without an error, for grayscale files
# whose one component says 2 x 2; for libjpeg such a factor has no meaning, and its encoders do write it.
NVJPEG_KINDS = frozenset({"jpeg YCbCr", "jpeg Gray"})
JPEG_KINDS = NVJPEG_KINDS | {SCALED_GRAY}
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF0 to SOF15 without DHT, JPG and DAC
PNG_KINDS = frozenset({f"png {bits}" for bits in (1, 2, 4, 8)})


def read_header(data: bytes) -> Header | None:
    """The header of a JPEG or PNG file; None for any other file.

    None also if the file does not end as its format does, since one cut-off file ends a whole call of
    some libraries, or says more pixels than Pillow takes, since a decoder would ask for them all.
    A JPEG takes 2 us, where decoding one of 64 x 64 pixels takes 60 us.
    """
    if data.startswith(JPEG_START) and data.endswith(JPEG_END):
        header = jpeg_header(data)
    elif data.startswith(PNG_START) and data.endswith(PNG_END):
        header = png_header(data)
    else:
        return None
    return header if header and 0 < header.height * header.width <= most_pixels() else None


def most_pixels() -> float:
    """Pillow's limit, above which it takes a file for a decompression bomb."""
    return float("inf") if Image.MAX_IMAGE_PIXELS is None else 2 * Image.MAX_IMAGE_PIXELS


def jpeg_header(data: bytes) -> Header | None:
    from simplejpeg import decode_jpeg_header  # here, so that a node without it skips and does not fail

    try:
        height, width, colour, _ = decode_jpeg_header(data)
    except (ValueError, MemoryError):
        return None
    kind = SCALED_GRAY if colour == "Gray" and gray_factors(data) != b"\x11" else f"jpeg {colour}"
    return Header(kind, height, width)


def gray_factors(data: bytes) -> bytes:
    """The byte of sampling factors of a JPEG's first component; empty if there is no frame header.

    Source: ITU-T T.81, B.2.2: after the marker come length, precision, height, width, the number of
    components, and of each its id, its factors and its table.
    """
    return next((data[place + 11 : place + 12] for marker, place in segments(data) if marker in FRAMES), b"")


def segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Marker and place of each segment of a JPEG up to its first scan; ends where no segment begins.

    Source: ITU-T T.81, B.1.1.2: bytes of 0xFF may fill the room before a marker.
    """
    place = 2
    while place + 4 <= len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if marker == 0xFF:
            place += 1
            continue
        yield marker, place
        if marker == SCAN:
            return
        place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")


def png_header(data: bytes) -> Header | None:
    """Source: PNG specification, third edition, IHDR: the first chunk, 13 bytes."""
    if data[12:16] != b"IHDR":
        return None
    width, height, bits = struct.unpack(">IIB", data[16:25])
    return Header(f"png {bits}", height, width)
