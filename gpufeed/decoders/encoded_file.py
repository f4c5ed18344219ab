"""Read an image file with few system calls, and tell from its first and last bytes which decoder takes it."""

import contextlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from PIL import Image

from gpufeed.decoders.base import bad_file

PIECE = 64 * 2**10  # bytes of the first read, which most small images fit into
MOST_BYTES = 2**29  # of one file: as much as the most pixels that Pillow takes, as 8-bit RGB
LOOKED_AT = 256  # files whose sizes are a sample of all


def read_file(path: str) -> bytes:
    """Return a whole file by open, read and close alone; Path.read_bytes makes more system calls.

    Raises GpufeedError if it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(descriptor, PIECE)
            if len(data) < PIECE:  # a regular file returns less than asked for only at its end
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
    """Return the mean size of at most LOOKED_AT of the files in bytes; 0 if none can be read."""
    sizes = []
    for path in paths[:: max(1, -(-len(paths) // LOOKED_AT))]:
        with contextlib.suppress(OSError):  # reading it raises an error that names it
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


EXIF = b"Exif\0\0"  # after marker APP1 and a length. Source: Exif 2.32, 4.7.2
APP1, APP15, SCAN = 0xE1, 0xEF, 0xDA


def without_exif(data: bytes) -> bytes:
    """Return a JPEG whose Exif data has the marker APP15, so that no library rotates it by its Exif tag."""
    found = [place for marker, place in segments(data) if marker == APP1 and data.startswith(EXIF, place + 4)]
    if found:
        changed = bytearray(data)
        for place in found:
            changed[place + 1] = APP15
        return bytes(changed)
    return data


SCALED_GRAY = "jpeg Gray with sampling factors"
TALL_CHROMA = "jpeg YCbCr 4:4:0"  # chroma of half the height, as in 4:2:2 files that were rotated
# The kinds that nvJPEG decodes. On an H200 its JPEG engines returned wrong pixels, without an error, for gray
# files with sampling factors of 2 x 2. libjpeg ignores such factors, but some of its encoders write them.
NVJPEG_KINDS = frozenset({"jpeg YCbCr", TALL_CHROMA, "jpeg Gray"})
JPEG_KINDS = NVJPEG_KINDS | {SCALED_GRAY}
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF0 to SOF15 without DHT, JPG and DAC
PNG_KINDS = frozenset({f"png {bits}" for bits in (1, 2, 4, 8)})


def read_header(data: bytes) -> Header | None:
    """Return the header of a JPEG or PNG file; None for any other file.

    Also None for a file without its format's end mark, since one cut-off file fails a whole call of some
    libraries. Also None for a header with more pixels than Pillow accepts, since a decoder would allocate
    them. It takes 2 us for a JPEG; decoding one of 64 x 64 pixels takes 60 us.
    """
    if data.startswith(JPEG_START) and data.endswith(JPEG_END):
        header = jpeg_header(data)
    elif data.startswith(PNG_START) and data.endswith(PNG_END):
        header = png_header(data)
    else:
        return None
    return header if header and 0 < header.height * header.width <= most_pixels() else None


def most_pixels() -> float:
    """Return the number of pixels above which Pillow takes a file for a decompression bomb."""
    return float("inf") if Image.MAX_IMAGE_PIXELS is None else 2 * Image.MAX_IMAGE_PIXELS


def jpeg_header(data: bytes) -> Header | None:
    from simplejpeg import decode_jpeg_header  # here, so that a node without it skips instead of failing

    try:
        height, width, colour, sampling = decode_jpeg_header(data)
    except (ValueError, MemoryError):
        return None
    kind = f"jpeg {colour}"
    if colour == "Gray" and gray_factors(data) != b"\x11":
        kind = SCALED_GRAY
    elif (colour, sampling) == ("YCbCr", "440"):
        kind = TALL_CHROMA
    return Header(kind, height, width)


def gray_factors(data: bytes) -> bytes:
    """Return the byte of sampling factors of a JPEG's first component; empty if there is no frame header.

    Source: ITU-T T.81, B.2.2: after the marker come length, precision, height, width, the number of
    components, and for each its id, its factors and its table.
    """
    return next((data[place + 11 : place + 12] for marker, place in segments(data) if marker in FRAMES), b"")


def segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the marker and place of each segment of a JPEG up to its first scan or the first damage.

    Source: ITU-T T.81, B.1.1.2: fill bytes of 0xFF may precede a marker.
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
    """Read the first chunk. Source: PNG specification, third edition, IHDR: 13 bytes."""
    if data[12:16] != b"IHDR":
        return None
    width, height, bits = struct.unpack(">IIB", data[16:25])
    return Header(f"png {bits}", height, width)
