"""Samples of a strip set in batches on the device: whole strips, and the left-over files that are in none."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from gpufeed.core.errors import Skip
from gpufeed.datasets.manifest import Manifest
from gpufeed.decoders.base import DecodeCounts, Decoder, bad_file
from gpufeed.decoders.pillow import PillowDecoder
from gpufeed.decoders.simplejpeg import SimpleJpegDecoder
from gpufeed.stores.strip_backends import open_backend
from gpufeed.stores.strip_backends.base import rows_of
from gpufeed.stores.strip_backends.cpu import decode_strip
from gpufeed.stores.strips_store import Strip, StripSet, open_strips

FILES_A_UNIT = 256  # left-over files that are decoded together, as many as a strip has images
REFERENCE = "simplejpeg"  # decodes a strip that the backend refuses
ORDINARY = (SimpleJpegDecoder, PillowDecoder)  # the first that the node has decodes left-over files


@dataclass(frozen=True)
class Unit:
    """Samples that are decoded together: those of a strip, or some left-over files if `strip` is None."""

    ids: np.ndarray  # int64 (n,)
    strip: Strip | None = None


class StripReader:
    """A decoder of units of a strip set, which stays mapped so that its bytes are read once.

    Not every GPU decoder notices damaged bytes. verify=False saves reading the whole file where the
    equivalence check has just verified it; later damage then shows only if the decoder notices it.
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
        """Open the strip set. threads: cores. verify: check every byte, not only size, index and manifest.

        Raises GpufeedError for a strip set that is damaged, of another manifest, or of several image sizes,
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
        self.decode_counts = DecodeCounts("strips")  # images decoded by the backend, and by fallbacks

    def let_go(self) -> None:
        """Map the set again, so that the kernel may evict the pages read so far."""
        # copy on write, though nobody writes, as torch wraps no read-only memory; an empty file cannot be
        # mapped
        self.bytes = np.memmap(self.path, np.uint8, mode="c") if self.strips.strips else np.empty(0, np.uint8)

    def close(self) -> None:
        """End the threads; safe to call twice."""
        self.pool.shutdown()

    def units(self, split: str) -> list[Unit]:
        """Return every sample of the split once: its strips, then its left-over files."""
        strips = [Unit(strip.ids, strip) for strip in self.strips.of_split(split)]
        left = np.intersect1d(self.strips.left_over(), self.manifest.ids(split))
        return strips + [
            Unit(left[start : start + FILES_A_UNIT]) for start in range(0, len(left), FILES_A_UNIT)
        ]

    def read(self, units: Sequence[Unit]) -> tuple[np.ndarray, torch.Tensor]:
        """Return (ids int64 (n,), images uint8 (n, H, W, 3) on the device), ready for its current stream.

        Left-over files are decoded on the CPU while the device decodes the strips. Raises GpufeedError
        for a damaged strip and for a file that nobody can decode.
        """
        whole = [unit for unit in units if unit.strip is not None]
        whole.sort(key=lambda unit: unit.strip.components)  # backends decode gray and colour separately
        ids = [unit.ids for unit in whole] + [unit.ids for unit in units if unit.strip is None]
        ids = np.concatenate(ids) if ids else np.empty(0, np.int64)
        out = torch.empty((len(ids), *self.size, 3), dtype=torch.uint8, device=self.device)
        joined = sum(len(unit.ids) for unit in whole)
        waiting = [self.pool.submit(self._decode_file, id) for id in ids[joined:].tolist()]
        if whole:
            self._decode_strips([unit.strip for unit in whole], out[:joined])
        if waiting:
            rows, decoders = zip(*(future.result() for future in waiting), strict=True)
            self.decode_counts.by.update(decoders)
            out[joined:].copy_(torch.from_numpy(np.stack(rows)))
        return ids, out

    def batches(self, split: str, units_a_time: int) -> Iterator[tuple[np.ndarray, torch.Tensor]]:
        """Yield all samples of the split, units_a_time units at a time, in the order of the strip set."""
        units = self.units(split)
        for start in range(0, len(units), units_a_time):
            yield self.read(units[start : start + units_a_time])

    def _decode_strips(self, strips: list[Strip], out: torch.Tensor) -> None:
        encoded = [self.bytes[strip.offset : strip.offset + strip.length] for strip in strips]
        refused = 0
        for place in self.backend.decode_into(encoded, strips, out):
            # the reference decodes what the backend refuses, or says what is wrong with it
            rows = decode_strip(encoded[place], strips[place])
            out[rows_of(strips)[place]].copy_(torch.from_numpy(rows))
            self.decode_counts.add(REFERENCE, len(rows))
            refused += len(rows)
        self.decode_counts.add(self.decode_counts.decoder, len(out) - refused)

    def _decode_file(self, id: int) -> tuple[np.ndarray, str]:
        """Return the pixels of one left-over file, uint8 (H, W, 3), and the name of its decoder."""
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
    """Return the decoder for left-over files."""
    for kind in ORDINARY[:-1]:
        try:
            return kind()
        except Skip:
            continue
    return ORDINARY[-1]()
