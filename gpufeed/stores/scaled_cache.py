"""A cache for datasets of several sizes: every image decoded once, its short side brought to one length.

`cache/short256.npy` holds the pixels end to end, uint8, in sample id order; heights, widths and offsets
follow from the manifest. Images whose short side is shorter stay as they are. Pillow resizes, as the
reference does.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from gpufeed.core.errors import GpufeedError
from gpufeed.datasets.manifest import Manifest
from gpufeed.decoders.pillow import resized
from gpufeed.stores.cache_fill import CHUNK, Undecodable, decoder, named, read_files
from gpufeed.stores.cache_format import REMAKE, open_cache
from gpufeed.system.processes import run

NAME = re.compile(r"short(\d+)\.npy")


@dataclass(frozen=True)
class ScaledImages:
    """Where each image of a cache lies, by sample id; int64 (n,) each. offsets: in bytes."""

    heights: np.ndarray
    widths: np.ndarray
    offsets: np.ndarray
    total: int

    @classmethod
    def of(cls, manifest: Manifest, short_side: int) -> "ScaledImages":
        """Return the layout of the cache of a manifest."""
        sizes = manifest.sizes()
        short = sizes.min(axis=1, keepdims=True)
        heights, widths = np.where(short > short_side, short_side * sizes // short, sizes).T
        ends = np.cumsum(3 * heights * widths)
        return cls(heights, widths, np.concatenate([[0], ends[:-1]]), int(ends[-1]))

    def place(self, sample_id: int) -> tuple[slice, tuple[int, int]]:
        """Return an image's bytes in the cache and its (height, width)."""
        height, width = int(self.heights[sample_id]), int(self.widths[sample_id])
        start = int(self.offsets[sample_id])
        return slice(start, start + 3 * height * width), (height, width)


def short_side_of(path: Path) -> int | None:
    """Return the short side of the images of a cache by its file's name; None for a cache of one size."""
    found = NAME.fullmatch(path.name)
    return int(found[1]) if found else None


def open_scaled(path: str | Path, manifest: Manifest) -> tuple[np.memmap, ScaledImages]:
    """Return the pixels, read-only uint8 (bytes,), and where each image lies; raises as open_cache does."""
    path = Path(path)
    pixels, images = open_cache(path, manifest), ScaledImages.of(manifest, short_side_of(path) or 0)
    if pixels.shape != (images.total,):
        raise GpufeedError(f"{pixels.shape} bytes in {path}", f"{images.total}", REMAKE)
    return pixels, images


def fill_scaled(
    manifest: Manifest, decoder_name: str, target: Path, short_side: int, processes: int
) -> Iterator[Undecodable]:
    """Writes every image to its place in `target`; yields those that nobody can decode."""
    images, files = ScaledImages.of(manifest, short_side), manifest.paths()
    starts = range(0, len(files), CHUNK)
    chunks = [files[start : start + CHUNK] for start in starts]
    places = [[images.place(i) for i in range(start, min(start + CHUNK, len(files)))] for start in starts]
    tasks = ([decoder_name] * len(chunks), [target] * len(chunks), starts, chunks, places)
    with tqdm(total=len(files), unit="image", desc=f"decoding with {decoder_name}") as progress:
        for chunk, failures in zip(chunks, run(scale_task, tasks, processes), strict=True):
            progress.update(len(chunk))
            yield from named(manifest, failures)


def scale_task(
    decoder_name: str,
    target: Path,
    start: int,
    files: list[Path],
    places: list[tuple[slice, tuple[int, int]]],
) -> list[tuple[int, str]]:
    """Decode and resize a chunk of files into their places; return (row, reason) of those that failed."""
    pixels, failures, ours = np.load(target, mmap_mode="r+"), [], decoder(decoder_name, 1)
    for row, (data, (place, size)) in enumerate(zip(read_files(files), places, strict=True), start):
        if isinstance(data, str):
            failures.append((row, data))
            continue
        decoded = ours.decode([data])
        if (image := decoded.images[0]) is None:
            failures.append((row, decoded.outcomes[0].reason or "no reason given"))
        else:
            pixels[place] = resized(image, size).reshape(-1)
    return failures
