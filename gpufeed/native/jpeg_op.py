"""Decoding of baseline JPEGs by the extension.

decode_jpegs: images of one size and one set of tables, from their coded bytes. decode_files: any mixture of
whole files.
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

    tables: int16, flat, in the layout of csrc/jpeg.h (`tables_of`). components: 1 (grayscale) or 3 (YCbCr).
    horizontal, vertical: luma samples per chroma sample, (1, 1), (2, 1), (2, 2), (1, 2) or (4, 1).
    """

    height: int
    width: int
    components: int
    horizontal: int
    vertical: int
    tables: torch.Tensor

    def to(self, device: torch.device) -> "Coding":
        """Return the coding with its tables on a device."""
        return Coding(**{**vars(self), "tables": self.tables.to(device)})


def decode_jpegs(
    data: torch.Tensor, offsets: torch.Tensor, coding: Coding, fancy: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decode adjacent images; offsets: int64 (N + 1,), where each image begins and the last ends."""
    return decode_between(data, offsets[:-1], offsets[1:], coding, fancy)


def decode_between(
    data: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    coding: Coding,
    fancy: bool = True,
    longest: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (images uint8 (N, H, W, 3), faults uint8 (N,)) of N images; the extension must be loaded.

    data: uint8 (bytes,), the entropy-coded bytes as in the files. starts, ends: int64 (N,), where each image
    begins and ends. coding.tables: on the same device. Does not wait for the device. An image with a fault
    (an index into FAULTS) is 0 everywhere. fancy: smooth chroma as libjpeg-turbo does by default, else repeat
    it. Either way the bytes equal those of its integer ("islow") decoder.

    longest: bytes of the longest image; longer ones are a fault. With it, images may be in any order and
    repeat, and each has this many bytes of workspace. Without it they must ascend, and the workspace has the
    size of data. Raises ValueError or TypeError for other tensors and shapes.
    """
    if data.is_cuda:  # the tables may be of another stream, and be freed at any time
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
    """Return (pixels uint8 (bytes,), faults uint8 (N,), places int64 (7, N)) of N whole files of any kinds.

    files: uint8 (bytes,) on the host. data: the same bytes on the device that decodes. offsets: int64 (N +
    1,) on the host. As in `decode_between`, an image with a fault is 0 everywhere, and this does not wait.
    windows: int32 (N, 4) on the host, top, left, height and width of what is needed of each image; None for
    all of it. Then only the window's blocks are kept. Pixels of the window equal those of the whole image,
    others may not.

    places, on the host, has seven rows. Where each image begins in pixels; height and width of its kept part,
    stored as (H, W, 3) and zero-padded; that part's first row and column in the image; height and width of
    the image. All but the first are 0 for a file whose header or window is refused.

    With a window, fewer faults are found. Codes after its last block are not checked, and values (a mean or
    coefficients out of range) only in blocks that are kept. Markers are checked everywhere.
    """
    return torch.ops.gpufeed.decode_jpeg_files(data, files, offsets, fancy, windows)


def tables_of(huffman: Sequence[bytes], quantisation: Sequence[bytes]) -> torch.Tensor:
    """Return tables in the extension's form: int16, flat.

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
    """Fill one table from its counts and symbols; source: T.81, annex C, for the codes."""
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
    """Return (run, size) of a symbol; size is None if 8-bit samples have no such coefficient."""
    run, size = (0, symbol) if dc else (symbol >> 4, symbol & 15)
    return run, None if size > (MOST_DC_SIZE if dc else MOST_AC_SIZE) else size
