"""Strips by this project's own kernels: a thread an image, without the JPEG engines."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from gpufeed.core.errors import Skip
from gpufeed.decoders.base import EXACT
from gpufeed.decoders.jpeg_groups import can_code, code_digest, coding_of
from gpufeed.decoders.jpeg_parser import DRI, SOF0, Kind, Refused, header_end, kind_of
from gpufeed.decoders.jpeg_parser import segment as segment_at
from gpufeed.decoders.strip_joiner import RESTARTS, RST0, segment
from gpufeed.stores.strip_backends.base import StripBackend, rows_of
from gpufeed.stores.strips_store import Strip

END = 2  # bytes of a marker, as between images and at a strip's end
PIECE = 4 * 2**20  # bytes copied to the device while the next are joined
HEAD = 4096  # bytes that hold a strip's header: four tables of 256 symbols and all else take 2,000


class CudaJpegStrips(StripBackend):
    """Strips by our kernels; the pixels are exactly libjpeg-turbo's for each file alone, also at the seams.

    Strips of one kind are decoded in one call: their bytes are joined in pinned memory, and the restart
    markers between images are found on the device.
    """

    name = "cuda_jpeg"
    tolerance = EXACT
    seams = False

    def __init__(self, device: torch.device, threads: int):
        super().__init__(device, threads)
        from gpufeed.native import status

        if sentence := status(device).sentence:
            raise Skip(f"Strips by {self.name} need this project's extension with CUDA kernels. {sentence}")
        self.staged = torch.empty(0, dtype=torch.uint8)
        self.copied = torch.cuda.Event() if device.type == "cuda" else None

    def decode_into(
        self, encoded: Sequence[np.ndarray], strips: Sequence[Strip], out: torch.Tensor
    ) -> list[int]:
        kinds: dict[Kind, list[tuple[int, int]]] = {}  # kind -> (place, where its coded bytes begin)
        refused = []
        for place, (data, strip) in enumerate(zip(encoded, strips, strict=True)):
            try:
                start, kind = opened(data, strip)
            except Refused:
                refused.append(place)
            else:
                kinds.setdefault(kind, []).append((place, start))
        where = rows_of(strips)
        for kind, members in kinds.items():
            places = [place for place, _ in members]
            coded = [torch.from_numpy(encoded[place])[start:-END] for place, start in members]
            counts = [len(strips[place].ids) for place in places]
            rows = [where[place] for place in places]
            refused += [places[member] for member in self._decode(kind, coded, counts, rows, out)]
        return sorted(refused)

    def _decode(
        self, kind: Kind, coded: list[torch.Tensor], counts: list[int], rows: list[slice], out: torch.Tensor
    ) -> list[int]:
        """Decode strips of one kind, given their coded bytes, into their rows of `out`; return the
        refused ones.
        """
        from gpufeed.native.jpeg_op import decode_between

        data, ends = self._sent(coded)
        images = np.repeat(np.arange(len(coded)), counts)  # the strip of each image
        found = markers(data)  # sync point: how many there are
        if len(found) == sum(counts) - len(coded):
            last = np.cumsum(counts) - 1  # the last image of each strip ends with the strip
            inner = np.flatnonzero(np.diff(images) == 0)
            bounds = torch.empty(len(images), dtype=torch.int64, device=self.device)
            inner, last = (torch.from_numpy(part).to(self.device) for part in (inner, last))
            bounds[inner] = found
            bounds[last] = torch.from_numpy(ends[1:]).to(self.device)
            starts = torch.cat([bounds.new_zeros(1), bounds[:-1] + END])
            starts[last[:-1] + 1] -= END  # there is no marker between two strips
            # if one strip has a marker too many and another one too few, an image ends before it starts
            decoded, faults = decode_between(data, starts, bounds, coding_of(kind, self.device))
            wrong = np.unique(images[faults.cpu().numpy() > 0])  # sync point
        elif len(coded) == 1:
            return [0]
        else:
            wrong = np.arange(len(coded))
        if len(coded) > 1 and len(wrong):  # each alone, so that only the bad ones are refused
            alone = [self._decode(kind, [coded[i]], [counts[i]], [rows[i]], out) for i in range(len(coded))]
            return [member for member, refusal in enumerate(alone) if refusal]
        if len(wrong):
            return [0]
        for start, end, first in stretches(rows):
            out[start:end].copy_(decoded[first : first + end - start])
        return []

    def _sent(self, coded: list[torch.Tensor]) -> tuple[torch.Tensor, np.ndarray]:
        """Return the joined bytes on the device, and the bounds of the parts, int64 (parts + 1,)."""
        ends = np.cumsum([0, *(len(part) for part in coded)], dtype=np.int64)
        if self.copied is None:
            return torch.cat(coded), ends
        if len(self.staged) < ends[-1]:
            self.staged = torch.empty(int(ends[-1]), dtype=torch.uint8, pin_memory=True)
        self.copied.synchronize()  # the last call's bytes have been copied
        data = torch.empty(int(ends[-1]), dtype=torch.uint8, device=self.device)
        first = 0
        for last in range(1, len(ends)):
            if last + 1 < len(ends) and ends[last] - ends[first] < PIECE:
                continue
            here = slice(int(ends[first]), int(ends[last]))
            torch.cat(coded[first:last], out=self.staged[here])
            data[here].copy_(self.staged[here], non_blocking=True)
            first = last
        self.copied.record(torch.cuda.current_stream(self.device))
        return data, ends

    def version(self) -> str:
        return f"strips by {self.name} {code_digest()}"


def markers(data: torch.Tensor) -> torch.Tensor:
    """Return the places of the restart markers in coded bytes, uint8 (bytes,); int64, ascending."""
    first, second = data[:-1], data[1:]
    return ((first == 0xFF) & (second - RST0 < RESTARTS)).nonzero().flatten()


def stretches(rows: list[slice]) -> list[tuple[int, int, int]]:
    """Merge neighbouring rows; return (first row, end, number of rows before) of each stretch."""
    found, before = [], 0
    for part in rows:
        if found and found[-1][1] == part.start:
            found[-1] = (found[-1][0], part.stop, found[-1][2])
        else:
            found.append((part.start, part.stop, before))
        before += part.stop - part.start
    return found


def opened(data: np.ndarray, strip: Strip) -> tuple[int, Kind]:
    """Return where a strip's coded bytes begin and the kind of its images; raise Refused for other bytes."""
    head = data[:HEAD].tobytes()
    start = header_end(head)
    kind = kind_of_images(head[:start], strip.height)
    if (kind.height, kind.width) != (strip.height, strip.width) or not can_code(kind):
        raise Refused("a strip of other images")
    if len(data) < start + END:
        raise Refused("a strip is cut off")
    return start, kind


@lru_cache(maxsize=64)
def kind_of_images(header: bytes, height: int) -> Kind:
    """Return the kind of a strip's images: that of its header with their height and without restarts."""
    kept, position = [header[:2]], 2
    while position < len(header):
        marker, body, position = segment_at(header, position)
        if marker == SOF0:
            body = body[:1] + height.to_bytes(2, "big") + body[3:]
        if marker != DRI:
            kept.append(segment(marker, body))
    return kind_of(b"".join(kept))
