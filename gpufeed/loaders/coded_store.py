"""A split's coded JPEGs in one tensor on the device; files that it cannot decode are kept as pixels."""

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
from gpufeed.loaders.prefetch import Prefetcher
from gpufeed.loaders.resident import SHARE_OF_FREE, free_bytes
from gpufeed.loaders.streaming import FileReader
from gpufeed.native.jpeg_op import Coding, decode_between, decode_jpegs
from gpufeed.system.host_memory import free_host_bytes

CHUNK = 1024  # files that are read, parsed and test-decoded together
# The share of a chunk's files from which a kind has its own calls: each takes at least as long as one image's
# codes, and its tables are 18 kB.
LEAST_SHARE = 1 / 256


@dataclass(frozen=True)
class CodedStore:
    """Row i is the i-th sample of a split. kinds: int64 (n,), on the host; all else is on the device.

    If kinds[i] = k < len(codings), bytes starts[i] to ends[i] of data, uint8 (bytes,), are its coded JPEG, at
    most longest[k] of them. Otherwise its pixels are kept[starts[i]], where kept is uint8 (m, H, W, 3).
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
        """The kind of the rows that are kept as pixels."""
        return len(self.codings)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All tensors on the device except the tables."""
        return self.data, self.starts, self.ends, self.kept

    def images(self, kind: int, starts: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """Queue the decoding of rows of one kind on the current stream; return new uint8 (N, H, W, 3).

        starts, ends: of the rows, int64 (N,); for 0 and -1 the image is undefined.
        """
        if kind == self.pixels:
            return self.kept.index_select(0, starts)
        coding, longest = self.codings[kind], self.longest[kind]
        images, _ = decode_between(self.data, starts, ends, coding, longest=longest)
        return images  # faults are ignored: every image was decoded when the store was filled


def filled(request: LoadRequest) -> CodedStore:
    """Read every file of the split once, and decode every image once to check it.

    Raises GpufeedError for a file that nobody can decode, and if there is not enough memory.
    """
    reader = FileReader(request.manifest)
    filling = Filling(request, reader.paths)
    chunks = Prefetcher(reader.batches(request.manifest.ids(request.split), CHUNK), "gpufeed-read")
    with closing(chunks):
        while (chunk := chunks.get()) is not None:
            filling.add(chunk.ids, chunk.encoded)
    return filling.store()


@dataclass
class Filling:
    """The store while it is filled, on the host, chunk by chunk."""

    request: LoadRequest
    paths: list[str]
    free: dict[str, int] = field(init=False)  # bytes free at the start, on the device and the host
    kinds: dict[Kind, int] = field(default_factory=dict)
    longest: list[int] = field(default_factory=list)
    coded: list[torch.Tensor] = field(default_factory=list)
    kept: list[torch.Tensor] = field(default_factory=list)
    rows: list[np.ndarray] = field(default_factory=list)  # int64 (3, n): kind or -1, start, end

    def __post_init__(self):
        device = self.request.device
        self.free = {str(device): free_bytes(device), "the host": free_host_bytes()}

    def add(self, ids: np.ndarray, files: list[bytes]) -> None:
        """Add a chunk: sample ids, int64 (n,), and their files. Raises as `filled` does."""
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
        """Return whether to keep a group coded. files: number of files in its chunk."""
        if (group.kind.height, group.kind.width) != self.request.manifest.image_size():
            return False
        return group.kind in self.kinds or len(group.places) >= LEAST_SHARE * files

    def _add_coded(self, group: Group, rows: np.ndarray) -> None:
        """Test-decode a group on the device and add its images, except those with a fault."""
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
        """Return pixels, uint8 (n, H, W, 3), by the same fallback as the decoder `cuda_jpeg`."""
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
        """Copy everything to the device."""
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
    """Concatenate uint8 parts of (n, *shape) on the device; free each part once it is copied."""
    whole = torch.empty((sum(map(len, parts)), *shape), dtype=torch.uint8, device=device)
    end = len(whole)
    while parts:
        part = parts.pop()
        whole[end - len(part) : end].copy_(part)
        end -= len(part)
    return whole
