"""A cache for datasets of several sizes: every image decoded once, its short side scaled to one length.

`cache/short256.npy` holds the pixels end to end, uint8, in sample id order; heights, widths and offsets
follow from the manifest. Images with a shorter short side keep their size. cache_fill.py decodes them, and
Pillow resizes them, as in the reference.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpufeed.datasets.manifest import Manifest
from gpufeed.stores.cache_format import CacheInfo, open_cache

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
        raise CacheInfo.wrong(f"{pixels.shape} bytes in {path}", images.total)
    return pixels, images
