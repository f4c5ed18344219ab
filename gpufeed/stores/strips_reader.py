"""Samples of a strip set in batches on the device: whole strips, and beside them what is in no strip."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from gpufeed.core.errors import Skip
from gpufeed.datasets.manifest import Manifest
from gpufeed.decoders.base import Decoder, Tally, bad_file
from gpufeed.decoders.pillow import PillowDecoder
from gpufeed.decoders.simplejpeg import SimpleJpegDecoder
from gpufeed.stores.strip_backends import open_backend
from gpufeed.stores.strip_backends.base import rows_of
from gpufeed.stores.strip_backends.cpu import decode_strip
from gpufeed.stores.strips_store import Strip, StripSet, open_strips

FILES_A_UNIT = 256  # left-over files that are decoded together, as many as a strip has images
REFERENCE = "simplejpeg"  # what strips_decode takes for a strip that the backend refuses
ORDINARY = (SimpleJpegDecoder, PillowDecoder)  # what decodes left-over files: the first that the node has


@dataclass(frozen=True)
class Unit:
    """Samples that are decoded together: those of a strip, or some left-over files if `strip` is None."""

    ids: np.ndarray  # int64 (n,)
    strip: Strip | None = None


class StripReader:
    """Decodes units of a strip set. The set stays mapped, so that its bytes are read once, by the decoder.

    Not every GPU decoder notices damaged bytes. Who opens a set that the equivalence gate has verified just
    before may say verify=False, which saves reading the whole file; damage that comes after the gate then
    shows only if the decoder notices it.
    """

    def __init__(
        self,
        manifest: Manifest,
        path: str | Path,
        device: torch.device,
        threads: int,
        backend: str | None = None,
        verify: bool = True,
    ):
        """threads: cores to use. verify: whether every byte is held against the set's digest; size, index
        and manifest always are.

        Raises GpufeedError for a strip set that is damaged, not the manifest's, or of several image sizes,
        and Skip if `backend` is named and cannot run here.
        """
        self.manifest, self.device = manifest, device
        self.size = manifest.image_size()
        self.strips: StripSet = open_strips(path, manifest, verify)
        self.backend = open_backend(device, threads, backend)
        self.files = manifest.paths() if self.strips.left_over().size else []
        self.path = path
        self.let_go()
        self.pool = ThreadPoolExecutor(threads)
        self.ordinary = ordinary_decoder()
        self.tally = Tally("strips")  # who decoded what: the backend, and those in its place

    def let_go(self) -> None:
        """Maps the set anew, so that the kernel may evict pages that were read."""
        # copy on write: torch wraps no read-only memory; nobody writes. An empty file cannot be mapped.
        self.bytes = np.memmap(self.path, np.uint8, mode="c") if self.strips.strips else np.empty(0, np.uint8)

    def close(self) -> None:
        """Ends the threads; safe to call twice."""
        self.pool.shutdown()

    def units(self, split: str) -> list[Unit]:
        """Every sample of the split once: its strips, then its left-over files."""
        strips = [Unit(strip.ids, strip) for strip in self.strips.of_split(split)]
        left = np.intersect1d(self.strips.left_over(), self.manifest.ids(split))
        return strips + [
            Unit(left[start : start + FILES_A_UNIT]) for start in range(0, len(left), FILES_A_UNIT)
        ]

    def read(self, units: Sequence[Unit]) -> tuple[np.ndarray, torch.Tensor]:
        """(ids int64 (n,), images uint8 (n, H, W, 3) on the device), ready for its current stream.

        Left-over files are decoded on the CPU while the device decodes the strips. Raises GpufeedError
        for a damaged strip and for a file that nobody can decode.
        """
        whole = [unit for unit in units if unit.strip is not None]
        whole.sort(key=lambda unit: unit.strip.components)  # backends decode one kind after the other
        ids = [unit.ids for unit in whole] + [unit.ids for unit in units if unit.strip is None]
        ids = np.concatenate(ids) if ids else np.empty(0, np.int64)
        out = torch.empty((len(ids), *self.size, 3), dtype=torch.uint8, device=self.device)
        joined = sum(len(unit.ids) for unit in whole)
        waiting = [self.pool.submit(self._decode_file, id) for id in ids[joined:].tolist()]
        if whole:
            self._decode_strips([unit.strip for unit in whole], out[:joined])
        if waiting:
            rows, decoders = zip(*(future.result() for future in waiting), strict=True)
            self.tally.by.update(decoders)
            out[joined:].copy_(torch.from_numpy(np.stack(rows)))
        return ids, out

    def batches(self, split: str, units_a_time: int) -> Iterator[tuple[np.ndarray, torch.Tensor]]:
        """All samples of the split, so many units at a time, in the order of the strip set."""
        units = self.units(split)
        for start in range(0, len(units), units_a_time):
            yield self.read(units[start : start + units_a_time])

    def _decode_strips(self, strips: list[Strip], out: torch.Tensor) -> None:
        encoded = [self.bytes[strip.offset : strip.offset + strip.length] for strip in strips]
        refused = 0
        for place in self.backend.decode_into(encoded, strips, out):
            # the backend does not take it: the reference does, or says what is wrong with it
            rows = decode_strip(encoded[place], strips[place])
            out[rows_of(strips)[place]].copy_(torch.from_numpy(rows))
            self.tally.add(REFERENCE, len(rows))
            refused += len(rows)
        self.tally.add(self.tally.decoder, len(out) - refused)

    def _decode_file(self, id: int) -> tuple[np.ndarray, str]:
        """The pixels of one left-over file, uint8 (H, W, 3), and who decoded it."""
        path = self.files[id]
        try:
            decoded = self.ordinary.decode([path.read_bytes()])
        except OSError as error:
            raise bad_file(path, error.strerror or str(error)) from error
        image = decoded.images[0]
        if image is None:
            raise bad_file(path, str(decoded.outcomes[0].reason))
        if image.shape != (*self.size, 3):
            raise bad_file(path, f"decoded to {image.shape}, the manifest says {(*self.size, 3)}")
        return image, str(decoded.outcomes[0].decoder)


def ordinary_decoder() -> Decoder:
    """The decoder for files in no strip."""
    for kind in ORDINARY[:-1]:
        try:
            return kind()
        except Skip:
            continue
    return ORDINARY[-1]()
