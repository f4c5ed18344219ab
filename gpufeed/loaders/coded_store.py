"""A split's JPEGs as they are coded, in one tensor on the device; what is no such JPEG is kept as pixels."""

from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import torch

from gpufeed.core.errors import GpufeedError
from gpufeed.decoders.base import bad_file
from gpufeed.decoders.jpeg_groups import Group, coding_of, grouped, joined
from gpufeed.decoders.jpeg_parser import Kind
from gpufeed.decoders.pillow import PillowDecoder
from gpufeed.loaders.base import LoadRequest
from gpufeed.loaders.prefetch import Ahead
from gpufeed.loaders.resident import SHARE_OF_FREE, free_bytes
from gpufeed.loaders.streaming import FileReader
from gpufeed.native.jpeg_op import Coding, decode_between, decode_jpegs
from gpufeed.system.host_memory import free_host_bytes

CHUNK = 1024  # files that are read, taken apart and tried together
# Of a chunk's files, from which on a kind has calls of its own: each takes at least as long as one image's
# codes, and its tables are 18 kB.
LEAST_SHARE = 1 / 256


@dataclass(frozen=True)
class CodedStore:
    """Row i is the i-th sample of a split. kinds: int64 (n,), on the host; all else is on the device.

    Of a row of kind k < len(codings) the bytes starts[i] to ends[i] of data, uint8 (bytes,), are a JPEG's, at
    most longest[k] of them. Of any other, kept[starts[i]] are the pixels, kept being uint8 (m, H, W, 3).
    starts, ends: int64 (n,).
    """

    data: torch.Tensor
    starts: torch.Tensor
    ends: torch.Tensor
    kinds: np.ndarray
    codings: list[Coding]
    longest: list[int]
    kept: torch.Tensor

    @property
    def pixels(self) -> int:
        """The kind of rows that are kept as pixels."""
        return len(self.codings)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All on the device but the tables."""
        return self.data, self.starts, self.ends, self.kept

    def images(self, kind: int, starts: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """Return uint8 (N, H, W, 3), new, of rows of one kind, queued on the current stream; waits for
        nothing.

        starts, ends: of the rows, int64 (N,); where they are 0 and -1 some image stands.
        """
        if kind == self.pixels:
            return self.kept.index_select(0, starts)
        coding, longest = self.codings[kind], self.longest[kind]
        images, _ = decode_between(self.data, starts, ends, coding, longest=longest)
        return images  # nobody asks for faults: every image was decoded when the store was filled


def filled(request: LoadRequest) -> CodedStore:
    """Read every file of the split once, and decodes every image once, to know that it can be.

    Raises GpufeedError for a file that nobody can decode, and where there is not enough memory.
    """
    reader = FileReader(request.manifest)
    filling = Filling(request, reader.paths)
    chunks = Ahead(reader.batches(request.manifest.ids(request.split), CHUNK), "gpufeed-read")
    with closing(chunks):
        while (chunk := chunks.get()) is not None:
            filling.add(chunk.ids, chunk.encoded)
    return filling.store()


@dataclass
class Filling:
    """What was read so far, on the host, chunk by chunk."""

    request: LoadRequest
    paths: list[str]
    free: dict[str, int] = field(init=False)  # bytes at first, by where
    kinds: dict[Kind, int] = field(default_factory=dict)
    longest: list[int] = field(default_factory=list)
    coded: list[torch.Tensor] = field(default_factory=list)
    kept: list[torch.Tensor] = field(default_factory=list)
    rows: list[np.ndarray] = field(default_factory=list)  # int64 (3, n): kind or -1, start, end

    def __post_init__(self):
        device = self.request.device
        self.free = {str(device): free_bytes(device), "the host": free_host_bytes()}

    def add(self, ids: np.ndarray, files: list[bytes]) -> None:
        """A chunk: sample ids, int64 (n,), and their files. Errors: as `filled`."""
        rows = np.full((3, len(files)), -1)
        for group in grouped(files):
            if self._takes(group, len(files)):
                self._add_coded(group, rows)
        rest = np.flatnonzero(rows[0] < 0)
        rows[1, rest] = sum(map(len, self.kept)) + np.arange(len(rest))
        self.kept.append(self._by_pillow(ids[rest], [files[place] for place in rest.tolist()]))
        self.rows.append(rows)
        self._check_room()

    def _takes(self, group: Group, files: int) -> bool:
        """Return whether a group of a chunk of so many files stays coded."""
        if (group.kind.height, group.kind.width) != self.request.manifest.image_size():
            return False
        return group.kind in self.kinds or len(group.places) >= LEAST_SHARE * files

    def _add_coded(self, group: Group, rows: np.ndarray) -> None:
        """A group, tried on the device: images with a fault get no row."""
        device, kind = self.request.device, self.kinds.setdefault(group.kind, len(self.kinds))
        data, offsets = joined(group.coded)
        _, faults = decode_jpegs(data.to(device), offsets.to(device), coding_of(group.kind, device))
        sound = (faults == 0).cpu().numpy()  # sync point
        offsets = sum(map(len, self.coded)) + offsets.numpy()
        starts, ends, places = offsets[:-1][sound], offsets[1:][sound], np.array(group.places)[sound]
        rows[0, places], rows[1, places], rows[2, places] = kind, starts, ends
        self.coded.append(data)
        self.longest += [0] * (len(self.kinds) - len(self.longest))
        self.longest[kind] = max([self.longest[kind], *(ends - starts).tolist()])

    def _by_pillow(self, ids: np.ndarray, files: list[bytes]) -> torch.Tensor:
        """Return the pixels, uint8 (n, H, W, 3), as the decoder `cuda_jpeg` has what it does not take
        decoded.
        """
        out = torch.empty((len(files), *self.request.manifest.image_size(), 3), dtype=torch.uint8)
        outcomes = PillowDecoder().decode_into(files, out)
        for sample_id, outcome in zip(ids.tolist(), outcomes, strict=True):
            if outcome.decoder is None:
                raise bad_file(self.paths[sample_id], str(outcome.reason))
        return out

    def _check_room(self) -> None:
        coded, kept = (sum(part.numel() for part in parts) for parts in (self.coded, self.kept))
        for where, free in self.free.items():
            if coded + kept > SHARE_OF_FREE * free:
                raise GpufeedError(
                    f"{coded / 2**30:.2f} GiB of coded images and {kept / 2**30:.2f} GiB of pixels or more "
                    f"in split {self.request.split!r} of {self.request.manifest.info.dataset}, "
                    f"{free / 2**30:.2f} GiB free on {where}",
                    f"at most {SHARE_OF_FREE:.0%} of the free memory",
                    "choose a loader that streams, or a device with more memory",
                )

    def store(self) -> CodedStore:
        """Return all of it on the device, written."""
        device = self.request.device
        kinds, starts, ends = np.concatenate(self.rows, axis=1)
        return CodedStore(
            together(self.coded, (), device),
            torch.from_numpy(starts.copy()).to(device),
            torch.from_numpy(ends.copy()).to(device),
            np.where(kinds < 0, len(self.kinds), kinds),
            [coding_of(kind, device) for kind in self.kinds],
            self.longest,
            together(self.kept, (*self.request.manifest.image_size(), 3), device),
        )


def together(parts: list[torch.Tensor], shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Return uint8 parts of (n, *shape) one behind the other on the device; gives up each once it is
    copied.
    """
    whole = torch.empty((sum(map(len, parts)), *shape), dtype=torch.uint8, device=device)
    end = len(whole)
    while parts:
        part = parts.pop()
        whole[end - len(part) : end].copy_(part)
        end -= len(part)
    return whole
