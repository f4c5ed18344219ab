"""Join files of one kind into a strip: one header, and a restart marker before each image but the first.

A restart resets the DC predictions to 0, as the start of a scan does. So every image's entropy-coded bytes
mean the same in the strip as in its file, and are copied unchanged. Source: ITU-T T.81, B.2.4.4 and E.1.4
(restart intervals).
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from struct import pack

from gpufeed.core.errors import GpufeedError
from gpufeed.decoders.jpeg_parser import APP0, DHT, DQT, DRI, EOI, SOF0, SOI, SOS, Jpeg, Kind

MAX_ROWS = 65_500  # JPEG_MAX_DIMENSION of libjpeg
JFIF = b"JFIF\0" + bytes([1, 1, 0, 0, 1, 0, 1, 0, 0])  # version 1.1, no density, no thumbnail
RST0, RESTARTS = 0xD0, 8


def header(kind: Kind, count: int) -> bytes:
    """Return the header of a strip of `count` images, up to the first entropy-coded byte.

    Its JFIF marker means grayscale or YCbCr to every decoder. Raises GpufeedError for a strip that is too
    tall.
    """
    rows = kind.height * count
    if not 1 <= rows <= MAX_ROWS:
        raise GpufeedError(
            f"{count} images of {kind.height} rows in one strip",
            f"at least one image and at most {MAX_ROWS} rows, the limit of libjpeg",
            "ask for fewer images a strip",
        )
    parts = [bytes([0xFF, SOI]), segment(APP0, JFIF)]
    parts += [segment(DQT, bytes([number]) + table) for number, table in kind.quantisation]
    parts.append(segment(SOF0, frame(kind, rows)))
    parts += [segment(DHT, bytes([number]) + table) for number, table in kind.huffman]
    parts += [segment(DRI, pack(">H", kind.mcus)), segment(SOS, scan(kind))]
    return b"".join(parts)


def segment(marker: int, body: bytes) -> bytes:
    """Return a marker with its length and contents."""
    return bytes([0xFF, marker]) + pack(">H", len(body) + 2) + body


def frame(kind: Kind, rows: int) -> bytes:
    """Return the frame header's contents, with the strip's height."""
    parts = [pack(">BHHB", 8, rows, kind.width, len(kind.components))]
    parts += [
        bytes([part.id, part.horizontal << 4 | part.vertical, part.quantisation]) for part in kind.components
    ]
    return b"".join(parts)


def scan(kind: Kind) -> bytes:
    """Return the scan header's contents: all components, all 64 coefficients, one pass."""
    parts = [bytes([part.id, part.dc_table << 4 | part.ac_table]) for part in kind.components]
    return bytes([len(parts)]) + b"".join(parts) + bytes([0, 63, 0])


def join(images: Sequence[Jpeg]) -> bytes:
    """Return one tall JPEG of images of one kind, the first on top.

    Raises GpufeedError for more rows than a JPEG may have, ValueError for images of different kinds.
    """
    if not images:
        raise ValueError("found no images; expected at least one")
    kind = images[0].kind
    if any(image.kind != kind for image in images):
        raise ValueError("found images of different kinds; expected one kind a strip")
    parts = [header(kind, len(images)), images[0].entropy]
    for place, image in enumerate(images[1:]):
        parts += (bytes([0xFF, RST0 + place % RESTARTS]), image.entropy)
    parts.append(bytes([0xFF, EOI]))
    return b"".join(parts)


@lru_cache(maxsize=64)
def kind_digest(kind: Kind) -> bytes:
    """Return 16 bytes that are equal for files of one kind and differ otherwise."""
    return hashlib.blake2b(header(kind, 1), digest_size=16).digest()
