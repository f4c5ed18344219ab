"""Parse a JPEG file into its header's contents and its entropy-coded bytes.

Strict on purpose: a file that is not plain baseline is refused with a reason and decoded elsewhere. Reasons
name no sizes or offsets, so that they can be counted.
Source: ITU-T T.81 (JPEG), annex B for the markers, table B.5 for the limits of Huffman tables.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct

SOF0, DHT, SOI, EOI, SOS, DQT, DRI, APP0, APP14, COM = (
    0xC0,
    0xC4,
    0xD8,
    0xD9,
    0xDA,
    0xDB,
    0xDD,
    0xE0,
    0xEE,
    0xFE,
)
OTHER_FRAMES = {
    0xC1: "extended sequential",
    0xC2: "progressive",
    0xC3: "lossless",
    **dict.fromkeys((0xC5, 0xC6, 0xC7, 0xCD, 0xCE, 0xCF), "hierarchical"),
    **dict.fromkeys((0xC9, 0xCA, 0xCB), "arithmetic coding"),
}
# in the scan FF 00 stands for a byte FF; FF before any other byte begins a marker
MARKER_IN_SCAN = re.compile(rb"\xff[^\x00]", re.DOTALL)
# (horizontal, vertical) of luma relative to chroma at 1 x 1: those that libjpeg-turbo and nvJPEG both know
SAMPLINGS = {(1, 1): "4:4:4", (2, 1): "4:2:2", (1, 2): "4:4:0", (2, 2): "4:2:0", (4, 1): "4:1:1"}
BLOCK = 8  # pixels a side
MAX_DC_CATEGORY = 11  # 8-bit baseline
MAX_MCUS = 0xFFFF  # a restart interval has 16 bits
PARTIAL_MCUS = "its sides are not whole MCUs"
HEAD = Struct(">H")
FRAME = Struct(">BHHB")  # precision, height, width, components


class Refused(Exception):
    """This file cannot be part of a strip; the message is the reason."""


@dataclass(frozen=True)
class Component:
    """One colour component: its id, sampling factors and the numbers of its tables."""

    id: int
    horizontal: int
    vertical: int
    quantisation: int
    dc_table: int
    ac_table: int


@dataclass(frozen=True)
class Kind:
    """All that two files must share to be in one strip. Only tables that the scan uses are kept.

    quantisation: (number, 64 bytes in zigzag order); huffman: (class << 4 | number, 16 counts and the
    symbols). Both sorted. The colour space is grayscale (one component) or YCbCr (three).
    """

    height: int
    width: int
    components: tuple[Component, ...]
    quantisation: tuple[tuple[int, bytes], ...]
    huffman: tuple[tuple[int, bytes], ...]

    @property
    def sampling(self) -> str:
        """Chroma subsampling in the usual notation, or "grayscale"."""
        first = self.components[0]
        return "grayscale" if len(self.components) == 1 else SAMPLINGS[first.horizontal, first.vertical]

    @property
    def mcu(self) -> tuple[int, int]:
        """(height, width) of a minimum coded unit in pixels."""
        return BLOCK * self.components[0].vertical, BLOCK * self.components[0].horizontal

    @property
    def mcus(self) -> int:
        """Minimum coded units of one image."""
        height, width = self.mcu
        return -(-self.height // height) * -(-self.width // width)

    @property
    def blocks(self) -> int:
        """8 x 8 blocks of one image, all components."""
        return self.mcus * sum(part.horizontal * part.vertical for part in self.components)


@dataclass(frozen=True)
class Jpeg:
    """A parsed file. entropy: the bytes between the scan's header and the end-of-image marker."""

    kind: Kind
    entropy: bytes


@dataclass
class Header:
    """The contents of the segments before the scan, as far as they are read."""

    quantisation: dict[int, bytes]
    huffman: dict[int, bytes]
    frame: bytes | None = None
    jfif: bool = False
    adobe_transform: int | None = None


def parse(data: bytes, whole_mcus: bool = True) -> Jpeg:
    """Parse a whole file; raise Refused, with the reason, for a file that a strip cannot hold.

    Accepted: baseline Huffman coding of 8 bits, one scan of one (grayscale) or three (YCbCr) components,
    sides that are whole MCUs unless whole_mcus is False, no restart intervals, nothing after the end of the
    image.
    """
    end = header_end(data)
    kind = kind_of(data[:end])
    if whole_mcus and (kind.height % kind.mcu[0] or kind.width % kind.mcu[1]):
        raise Refused(PARTIAL_MCUS)
    return Jpeg(kind, entropy(data, end, kind))


def header_end(data: bytes) -> int:
    """Return the offset of the first entropy-coded byte."""
    if data[:2] != bytes([0xFF, SOI]):
        raise Refused("not a JPEG file")
    marker, position = SOI, 2
    while marker != SOS:
        marker, _, position = segment(data, position)
    return position


@lru_cache(maxsize=64)  # most files of a dataset begin with the same bytes
def kind_of(header: bytes) -> Kind:
    """Return the kind of a file, given the bytes before the entropy-coded ones."""
    found = Header({}, {})
    position = 2
    while position < len(header):
        marker, body, position = segment(header, position)
        if marker != SOS:
            read_segment(found, marker, body)
    return describe(found, body)


def segment(data: bytes, position: int) -> tuple[int, bytes, int]:
    """Return (marker, contents, end) of the segment that begins at `position`."""
    start = position + 4
    if start > len(data):
        raise Refused("the header is cut off")
    if data[position] != 0xFF:
        raise Refused("no marker where the header should have one")
    marker = data[position + 1]
    (length,) = HEAD.unpack_from(data, position + 2)  # counts its own two bytes
    end = position + 2 + length
    if length < 2 or end > len(data):
        raise Refused("the header is cut off")
    return marker, data[start:end], end


def read_segment(header: Header, marker: int, body: bytes) -> None:
    """Read a segment before the scan into `header`."""
    if marker == DQT:
        read_quantisation(header, body)
    elif marker == DHT:
        read_huffman(header, body)
    elif marker == SOF0:
        if header.frame is not None:
            raise Refused("more than one frame")
        header.frame = body
    elif marker in OTHER_FRAMES:
        raise Refused(f"not baseline: {OTHER_FRAMES[marker]}")
    elif marker == DRI:
        if body != b"\0\0":  # 0 switches restarts off
            raise Refused("it has restart intervals of its own")
    elif APP0 <= marker <= APP0 + 15 or marker == COM:
        read_application(header, marker, body)
    else:
        raise Refused("a marker that a baseline header does not have")


def read_application(header: Header, marker: int, body: bytes) -> None:
    """Read the colour space from the two markers that libjpeg reads; other metadata are ignored."""
    if marker == APP0 and len(body) >= 14 and body.startswith(b"JFIF\0"):
        header.jfif = True
    elif marker == APP14 and len(body) >= 12 and body.startswith(b"Adobe"):
        header.adobe_transform = body[11]


def read_quantisation(header: Header, body: bytes) -> None:
    """Read one or more tables of 64 bytes; a later one replaces an earlier one."""
    if len(body) % 65:
        raise Refused("quantisation tables of the wrong length")  # or of 16 bits, which are not baseline
    for start in range(0, len(body), 65):
        number, table = body[start], body[start + 1 : start + 65]
        if number > 3 or 0 in table:
            raise Refused("a quantisation table that is not baseline")
        header.quantisation[number] = table


def read_huffman(header: Header, body: bytes) -> None:
    """Read one or more tables: 16 counts of codes by length, then the symbols."""
    start = 0
    while start < len(body):
        counts = body[start + 1 : start + 17]
        end = start + 17 + sum(counts)
        if len(counts) < 16 or end > len(body):
            raise Refused("a Huffman table is cut off")
        number, table = body[start], body[start + 1 : end]
        check_huffman(number, counts, table[16:])
        header.huffman[number] = table
        start = end


def check_huffman(number: int, counts: bytes, symbols: bytes) -> None:
    """Refuse tables that are no prefix code, and numbers and symbols outside of baseline."""
    if number not in (0x00, 0x01, 0x10, 0x11) or len(symbols) > 256:
        raise Refused("a Huffman table that is not baseline")
    if number < 0x10 and any(symbol > MAX_DC_CATEGORY for symbol in symbols):
        raise Refused("a Huffman table that is not baseline")
    code = 0  # the next free code of the present length
    for length, count in enumerate(counts, start=1):
        code += count
        if count and code >= 1 << length:  # the code of all ones is reserved
            raise Refused("a Huffman table that is no prefix code")
        code <<= 1


def describe(header: Header, scan: bytes) -> Kind:
    """Return the kind of a file from its header and the contents of its scan header."""
    if header.frame is None:
        raise Refused("a scan before the frame")
    height, width, parts = read_frame(header.frame)
    tables = read_scan(scan, [part[0] for part in parts])
    components = tuple(
        Component(id, sampling >> 4, sampling & 15, quantisation, table >> 4, table & 15)
        for (id, sampling, quantisation), table in zip(parts, tables, strict=True)
    )
    check_components(components, header)
    kind = Kind(height, width, components, *used_tables(components, header))
    if not height or not width:
        raise Refused("no height or no width")
    if kind.mcus > MAX_MCUS:
        raise Refused("more MCUs than a restart interval can have")
    return kind


def read_frame(body: bytes) -> tuple[int, int, list[tuple[int, int, int]]]:
    """Return (height, width, [(id, sampling factors, quantisation table)]) of a frame header."""
    if len(body) < FRAME.size:
        raise Refused("the frame header is cut off")
    precision, height, width, count = FRAME.unpack_from(body)
    if precision != 8:
        raise Refused("not 8 bits a sample")
    if count not in (1, 3):
        raise Refused("neither one nor three components")
    if len(body) != FRAME.size + 3 * count:
        raise Refused("a frame header of the wrong length")
    rows = body[FRAME.size :]
    return height, width, [(rows[i], rows[i + 1], rows[i + 2]) for i in range(0, 3 * count, 3)]


def read_scan(body: bytes, ids: list[int]) -> list[int]:
    """Return each component's table numbers (DC << 4 | AC); the scan must hold all in the frame's order."""
    count = len(ids)
    if len(body) != 2 * count + 4 or body[0] != count or list(body[1 : 2 * count : 2]) != ids:
        raise Refused("the scan does not hold all components in order")
    if body[-3:] != bytes([0, 63, 0]):
        raise Refused("a scan that is not sequential")
    return list(body[2 : 2 * count + 1 : 2])


def check_components(components: tuple[Component, ...], header: Header) -> None:
    """Refuse sampling that decoders disagree on, and every colour space but grayscale and YCbCr."""
    first, *others = components
    sampling = (first.horizontal, first.vertical)
    if not others:
        if sampling != (1, 1):
            raise Refused("sampling factors that are rare")
        return
    if sampling not in SAMPLINGS or any((part.horizontal, part.vertical) != (1, 1) for part in others):
        raise Refused("sampling factors that are rare")
    if len({part.id for part in components}) != 3:
        raise Refused("two components of one name")
    # decoders disagree if the markers contradict each other or are missing
    if header.adobe_transform not in (None, 1):
        raise Refused("not YCbCr: its Adobe marker names another colour space")
    if not header.jfif and header.adobe_transform is None and [part.id for part in components] != [1, 2, 3]:
        raise Refused("not YCbCr: no marker names its colour space")


def used_tables(components: tuple[Component, ...], header: Header) -> tuple[tuple, tuple]:
    """Return the quantisation and Huffman tables that the components name, sorted by number."""
    quantisation = {part.quantisation for part in components}
    huffman = {part.dc_table for part in components} | {0x10 | part.ac_table for part in components}
    if not quantisation <= header.quantisation.keys() or not huffman <= header.huffman.keys():
        raise Refused("a table is missing")
    return (
        tuple((number, header.quantisation[number]) for number in sorted(quantisation)),
        tuple((number, header.huffman[number]) for number in sorted(huffman)),
    )


def entropy(data: bytes, start: int, kind: Kind) -> bytes:
    """Return the entropy-coded bytes from `start` to the end-of-image marker, which must end the file."""
    marker = MARKER_IN_SCAN.search(data, start)
    if marker is None:
        raise Refused("no end of image")
    if data[marker.start() + 1] != EOI:
        raise Refused("a marker inside the scan")
    if marker.end() != len(data):
        raise Refused("bytes after the end of the image")
    coded = data[start : marker.start()]
    # a block has at least two codes, one for DC and one for the end of the block, of a bit or more
    if 8 * len(coded) < 2 * kind.blocks:
        raise Refused("too few bytes for its size")
    return coded
