"""Decodes JPEGs from host memory in pieces: one piece is copied while earlier ones decode."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from gpufeed.native.jpeg_op import Coding, decode_between

PIECES = 4  # each decodes on its own stream, and takes at least the time of one image
LEAST = 4096  # images of a piece: smaller pieces were slower than one call
STAGES = 3  # pinned buffers: one is filled while the others are copied
PLACES = 2 * 8  # bytes of an image's start and end


@dataclass(frozen=True)
class Piece:
    """Images first to last of a call, in bytes low to high of its data.

    starts, ends: int64, relative to low.
    """

    first: int
    last: int
    low: int
    high: int
    starts: np.ndarray
    ends: np.ndarray

    @property
    def bytes(self) -> int:
        """Bytes of its starts, its ends and its images."""
        return (self.last - self.first) * PLACES + self.high - self.low


def pieces_of(
    size: int, starts: np.ndarray, ends: np.ndarray, most: int, least: int = LEAST
) -> Iterator[Piece]:
    """Yield at most `most` pieces of at least `least` images each, or one; none without images.

    size: bytes of the buffer. An image outside of it is outside of its piece, too.
    """
    count = len(starts)
    number = max(1, min(most, count // least))
    bounds = np.arange(number + 1) * count // number
    inside = (starts >= 0) & (starts <= ends) & (ends <= size)
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        here, part = inside[first:last], slice(first, last)
        low = int(starts[part][here].min()) if here.any() else 0
        high = int(ends[part][here].max()) if here.any() else 0
        if first < last:
            own = (np.where(here, starts[part] - low, 1), np.where(here, ends[part] - low, 0))
            yield Piece(first, last, low, high, *own)


@dataclass
class Stage:
    """A pinned buffer, and the event of its last copy to the device."""

    memory: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))
    copied: torch.cuda.Event = field(default_factory=torch.cuda.Event)

    def filled(self, piece: Piece, data: torch.Tensor) -> torch.Tensor:
        """Return its memory filled with a piece, after the copy that still reads it."""
        self.copied.synchronize()
        if len(self.memory) < piece.bytes:
            self.memory = torch.empty(piece.bytes, dtype=torch.uint8, pin_memory=True)
        pack(piece, data, self.memory[: piece.bytes])
        return self.memory[: piece.bytes]


class PieceDecoder:
    """Decodes JPEGs from host memory; its pinned buffers and streams are reused from call to call.

    For one thread at a time. Calls overlap too: none waits for work that is queued on the current stream.
    Besides the images, a call takes their size once more on the device, and the workspace of its pieces, at
    most 1 GiB each. The results of all queued calls are in memory at once.
    """

    def __init__(self, device: torch.device, pieces: int = PIECES, least: int = LEAST):
        self.device, self.least = device, least
        if device.type == "cuda":
            self.copying = torch.cuda.Stream(device)
            self.decoding = [torch.cuda.Stream(device) for _ in range(pieces)]
            self.stages = [Stage() for _ in range(STAGES)]

    def decode(
        self, data: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor, coding: Coding, fancy: bool = True
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (images, faults) on the device, as `decode_between` does.

        data, starts, ends: on the host, in any memory, and free for reuse on return. coding.tables: on the
        device, already written. Waits only for pinned memory that is still being copied, and for allocations.
        The results are ready on the current stream. Raises ValueError or TypeError for other tensors.
        """
        check(data, starts, ends)
        if self.device.type != "cuda":
            return decode_between(data, starts, ends, coding, fancy)
        size = (len(starts), coding.height, coding.width, 3)
        current = torch.cuda.current_stream(self.device)
        # allocated on the copying stream, for which pieces wait anyway: on the current stream they would wait
        # for all that is queued there, including the pieces of the previous call
        with torch.cuda.stream(self.copying):
            images = torch.empty(size, dtype=torch.uint8, device=self.device)
            faults = torch.empty(size[:1], dtype=torch.uint8, device=self.device)
        images.record_stream(current)
        faults.record_stream(current)
        parts = pieces_of(len(data), starts.numpy(), ends.numpy(), len(self.decoding), self.least)
        used = []
        try:
            for number, (piece, stream) in enumerate(zip(parts, self.decoding, strict=False)):
                sent = self._sent(self.stages[number % STAGES], piece, data)
                used.append(stream)
                part = slice(piece.first, piece.last)
                with torch.cuda.stream(stream):
                    stream.wait_stream(self.copying)
                    sent.record_stream(stream)
                    own_starts, own_ends, own = parted(sent, piece.last - piece.first)
                    decoded, fault = decode_between(own, own_starts, own_ends, coding, fancy)
                    images[part].copy_(decoded)
                    faults[part].copy_(fault)
        finally:  # also after an error, else the results' memory could be reused before it is written
            for stream in used:  # after queueing all, since a wait blocks a hardware queue that streams share
                current.wait_stream(stream)
        return images, faults

    def _sent(self, stage: Stage, piece: Piece, data: torch.Tensor) -> torch.Tensor:
        """Return a piece in device memory, queued on the copying stream."""
        filled = stage.filled(piece, data)
        with torch.cuda.stream(self.copying):
            sent = filled.to(self.device, non_blocking=True)
            stage.copied.record()
        return sent


def pack(piece: Piece, data: torch.Tensor, memory: torch.Tensor) -> None:
    """Copy a piece's starts, ends and coded bytes into memory of its size, in the layout of `parted`."""
    starts, ends, own = parted(memory, piece.last - piece.first)
    starts.numpy()[:] = piece.starts
    ends.numpy()[:] = piece.ends
    own.copy_(data[piece.low : piece.high])


def parted(memory: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Split a piece's memory, uint8 (bytes,), into starts and ends, int64 (count,), and coded bytes."""
    places = memory[: count * PLACES].view(torch.int64)
    return places[:count], places[count:], memory[count * PLACES :]


def check(data: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor) -> None:
    for name, tensor, dtype in (
        ("data", data, torch.uint8),
        ("starts", starts, torch.int64),
        ("ends", ends, torch.int64),
    ):
        if tensor.dtype != dtype:
            raise TypeError(f"found: {name} of {tensor.dtype}; expected: {dtype}; what to do: convert it")
        if tensor.device.type != "cpu" or tensor.dim() != 1:
            raise ValueError(
                f"found: {name} of shape {tuple(tensor.shape)} on {tensor.device}; expected: one dimension "
                "on the host; what to do: call decode_between for what is on a GPU"
            )
    if len(starts) != len(ends):
        raise ValueError(
            f"found: {len(starts)} starts and {len(ends)} ends; expected: one of each an image; "
            "what to do: pass both whole"
        )
