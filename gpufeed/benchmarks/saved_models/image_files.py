"""Reads image files, named or found in folders, as arrays of one size, one batch at a time."""

import os
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from gpufeed.augment.random_resized_crop import RandomResizedCrop
from gpufeed.core import image_listing
from gpufeed.core.errors import GpufeedError
from gpufeed.datasets.manifest import Manifest
from gpufeed.decoders.encoded_file import MOST_BYTES, read_file
from gpufeed.decoders.pillow import PillowDecoder, resized

SUFFIXES = (*image_listing.SUFFIXES, ".gif")  # of files in folders
EMPTY = f"no image in this folder (names ending in {', '.join(SUFFIXES)})"


@dataclass(frozen=True)
class Picture:
    """A path with its pixels, uint8 (H, W, 3), once it is read, or with the reason why it has none."""

    path: str
    reason: str | None = None
    pixels: np.ndarray | None = None


def find(paths: Iterable[str]) -> Iterator[Picture]:
    """Yield the files of `paths` in order, folders replaced by the images below them, sorted by name.

    A folder without images is yielded too, with that as its reason.
    """
    for path in paths:
        if not os.path.isdir(path):
            yield Picture(path)
            continue
        empty, failed = True, []
        for folder, folders, names in os.walk(path, onerror=failed.append):
            folders.sort()
            for name in sorted(names):
                if name.lower().endswith(SUFFIXES):
                    empty = False
                    yield Picture(os.path.join(folder, name))
        for error in failed:
            yield Picture(error.filename, f"a folder that cannot be read: {error.strerror}")
        if empty and not failed:
            yield Picture(path, EMPTY)


def samples(manifest: str | Path, count: int) -> list[str]:
    """Return `count` files of a dataset's evaluation split, evenly over classes; all if there are fewer."""
    of = Manifest.read(manifest)
    ids = of.ids(of.info.evaluation_split)
    ids = ids[np.argsort(of.labels()[ids], kind="stable")]
    count, paths = min(count, len(ids)), of.paths()
    return [str(paths[ids[place * len(ids) // count]]) for place in range(count)]


class Reader:
    """Reads, decodes and resizes single files: with Pillow as in the reference, bilinear as in `resize`."""

    def __init__(self, size: tuple[int, int], recipe: RandomResizedCrop | None = None):
        """Set the size (height, width) of all pictures. recipe: crops their centre; None stretches them."""
        self.size, self.recipe = size, recipe
        self.decoder = PillowDecoder()

    def read(self, found: Picture) -> Picture:
        """Return one picture; never raise for a bad file."""
        if found.reason:
            return found
        try:
            file = os.stat(found.path)
            if not stat.S_ISREG(file.st_mode):  # a pipe or a device may never end
                return Picture(found.path, "neither a file nor a folder")
            if file.st_size > MOST_BYTES:
                return Picture(found.path, f"{file.st_size} bytes, at most {MOST_BYTES} are read")
            data = read_file(found.path)
        except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
            return Picture(found.path, getattr(error, "strerror", None) or str(error))
        except GpufeedError as error:
            return Picture(found.path, error.found.removeprefix(f"{found.path}: "))
        decoded = self.decoder.decode([data])
        if decoded.images[0] is None:
            return Picture(found.path, decoded.outcomes[0].reason)
        image = decoded.images[0]
        if self.recipe is not None:
            sample = self.recipe.cut(image, self.recipe.window(0, 0, *image.shape[:2]))
        else:
            sample = resized(image, self.size)
        return Picture(found.path, pixels=sample)


def batches(paths: Iterable[str], reader: Reader, batch_size: int, threads: int) -> Iterator[list[Picture]]:
    """Yield all files of `paths`, `batch_size` at a time; only one batch is in memory."""
    files = find(paths)
    with ThreadPoolExecutor(threads) as pool:  # Pillow decodes without Python's lock
        while found := list(islice(files, batch_size)):
            yield list(pool.map(reader.read, found))
