"""decode_jpegs: baseline JPEGs of one size and one set of tables, from their coded bytes to RGB.

decode_files: any mixture of whole files.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

# as csrc/jpeg.h
LOOKUP_BITS, LONGEST = 11, 16
HUFFMAN = np.dtype(
    [("lookup", "u2", 1 << LOOKUP_BITS), ("limit", "u2", 8), ("offset", "u2", 8), ("symbols", "u2", 256)]
)
TABLES = np.dtype([("huffman", HUFFMAN, 4), ("quantisation", "u2", (3, 64))])
MOST_AC_SIZE = 10  # bits of a coefficient of 8-bit samples; T.81, table F.2
MOST_DC_SIZE = 11
FAULTS = (
    None,
    "its start and end do not lie in the buffer, or too far apart",
    "a marker inside its coded bytes",
    "bits that are no code of its table",
    "zeros beyond a block's last coefficient",
    "fewer coded bytes than it needs",
    "coded bytes are left over",
    "a block's mean is out of range",
    "its coefficients are out of range",
    "its header is not that of a baseline file of one scan, grayscale or YCbCr",
    "its restart markers are too few, too many or not in order",
    "threads that began inside of it did not agree on its codes",
    "its window does not lie inside of it",
)


@dataclass(frozen=True)
class Coding:
    """What the images of one call share.

    tables: int16, flat, as csrc/jpeg.h lays them out (`tables_of`). components: 1 (grayscale) or 3 (YCbCr).
    horizontal, vertical: samples of brightness for one of colour, (1, 1), (2, 1), (2, 2), (1, 2) or (4, 1).
    """

    height: int
    width: int
    components: int
    horizontal: int
    vertical: int
    tables: torch.Tensor

    def to(self, device: torch.device) -> "Coding":
        """Return the same with its tables on a device."""
        return Coding(**{**vars(self), "tables": self.tables.to(device)})


def decode_jpegs(
    data: torch.Tensor, offsets: torch.Tensor, coding: Coding, fancy: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """`decode_between` without gaps; offsets: int64 (N + 1,), where each image begins and the last ends."""
    return decode_between(data, offsets[:-1], offsets[1:], coding, fancy)


def decode_between(
    data: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    coding: Coding,
    fancy: bool = True,
    longest: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(images uint8 (N, H, W, 3), faults uint8 (N,)) of N images, by the extension, which must be loaded.

    data: uint8 (bytes,), the entropy-coded bytes as they are in the files; starts, ends: int64 (N,), where
    each image begins and ends; coding.tables: on the same device. Waits for nothing. An image with a fault
    (an index into FAULTS) is 0 everywhere. fancy: chroma is smoothed as libjpeg-turbo does it by default,
    else repeated; either way the bytes are those of its integer ("islow") decoder. longest: bytes of the
    longest image; longer ones are a fault. With it images may stand in any order, more than once too, and
    each has so many bytes of workspace; without, they ascend, and the workspace is as large as data. Raises
    ValueError or TypeError for tensors and shapes that are not these.
    """
    if data.is_cuda:  # the tables may have been made on another stream, and be dropped at any time
        coding.tables.record_stream(torch.cuda.current_stream(data.device))
    shape = (coding.height, coding.width, coding.components, coding.horizontal, coding.vertical)
    return torch.ops.gpufeed.decode_jpegs(data, starts, ends, coding.tables, *shape, fancy, longest)


def decode_files(
    data: torch.Tensor,
    files: torch.Tensor,
    offsets: torch.Tensor,
    fancy: bool = True,
    windows: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(pixels uint8 (bytes,), faults uint8 (N,), places int64 (7, N)) of N whole files of any kinds.

    files: uint8 (bytes,) on the host; data: the same bytes on the device that decodes, the results' too;
    offsets: int64 (N + 1,) on the host. As by `decode_between`, an image with a fault is 0 everywhere, and
    nothing is waited for. windows: int32 (N, 4) on the host, top, left, height and width of what is needed of
    each image; None for all of it. What is kept then is a window's blocks, of which the window's pixels are
    those of the whole image, and others need not be.

    places, on the host: where each image begins in pixels; height and width of what is kept, which lies there
    as (H, W, 3), with zeros up to the next; the first row and column of that in the whole image; height and
    width of the whole image. All but the first are 0 for a file whose header or window is refused.

    With a window less is found wrong: codes behind its last block are not judged, and values (a mean or
    coefficients out of range) only of blocks that are kept. Markers are judged everywhere.
    """
    return torch.ops.gpufeed.decode_jpeg_files(data, files, offsets, fancy, windows)


def tables_of(huffman: Sequence[bytes], quantisation: Sequence[bytes]) -> torch.Tensor:
    """Tables in the extension's form: int16, flat.

    huffman: DC and AC of the first component, then, if there are others, DC and AC of those, each 16 counts
    and the symbols. quantisation: of each component, 64 bytes in zigzag order.
    """
    found = np.zeros((), TABLES)
    for place, table in enumerate(huffman):
        fill_huffman(found["huffman"][place], table, dc=place % 2 == 0)
    for place, table in enumerate(quantisation):
        found["quantisation"][place] = np.frombuffer(table, np.uint8)
    return torch.from_numpy(np.frombuffer(found.tobytes(), np.int16).copy())


def fill_huffman(to: np.ndarray, table: bytes, dc: bool) -> None:
    """Return one table, from its counts and symbols; source: T.81, annex C, for the codes."""
    symbols = [entry(symbol, dc) for symbol in table[16:]]
    code = first = 0
    for length, count in enumerate(table[:16], start=1):
        for place, (run, size) in enumerate(symbols[first : first + count], start=first):
            if size is not None:
                to["symbols"][place] = value = length | run << 5 | size << 9
                if length <= LOOKUP_BITS:
                    start = (code + place - first) << (LOOKUP_BITS - length)
                    to["lookup"][start : start + (1 << (LOOKUP_BITS - length))] = value
        if length == LOOKUP_BITS:
            to["limit"][LONGEST - LOOKUP_BITS] = (code + count) << (LONGEST - length)
        if length > LOOKUP_BITS:
            to["limit"][length - LOOKUP_BITS - 1] = (code + count) << (LONGEST - length)
            to["offset"][length - LOOKUP_BITS - 1] = (first - code) % 2**16
        code, first = (code + count) << 1, first + count


def entry(symbol: int, dc: bool) -> tuple[int, int | None]:
    """(run, size) of a symbol; size None if 8-bit samples have no such coefficient."""
    run, size = (0, symbol) if dc else (symbol >> 4, symbol & 15)
    return run, None if size > (MOST_DC_SIZE if dc else MOST_AC_SIZE) else size
