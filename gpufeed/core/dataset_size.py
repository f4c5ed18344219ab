"""The size of a dataset as far as it is known before its files are read: images, bytes, pixels.

Standard library only: the workflow imports this while it plans.
"""

import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gpufeed.core.cell_matrix import source_options
from gpufeed.core.config_sources import with_defaults
from gpufeed.core.image_listing import is_image
from gpufeed.core.references import is_reference
from gpufeed.core.registry import MADE

# layout -> (images of both splits, side in pixels)
IMAGES = {"cifar10": (60_000, 32), "cifar10_jpeg": (60_000, 32), "fashion_mnist": (70_000, 28)}
TINY_IMAGENET = (2255, 64)  # (bytes of the archive for each image, side): parts of it are used too
BLOCK = 4096  # bytes of the smallest file on disk

# Lower bound of decoded bytes for each byte of a file: photographs at quality 95, and lossless files
LOSSY, LOSSLESS = 5, 1
LOSSY_SUFFIXES = (".jpg", ".jpeg", ".webp")
COUNTING_S = 2.0  # time limit for listing a folder; beyond it, the count is a lower bound
PHOTOGRAPH = 110_000  # bytes of an image in an archive of unknown content, as in ImageNet
FFCV_SIDE, FFCV_JPEGS = 500, 0.5  # of an FFCV file of several sizes: longest side, share kept as JPEG
EVALUATED = 0.5  # evaluation images for each training image, at most
SIZED = 2000  # files whose size is read, which is slow on a network file system


@dataclass(frozen=True)
class Amount:
    """images: 0 if unknown. files: bytes of the image files. read: pixels in the files. kept: pixels after
    decoding and resizing. whole: whether that is all, or only what was counted in time.
    """

    images: int
    files: int
    read: int
    kept: int
    whole: bool = True

    @property
    def count(self) -> int:
        """Images, or an estimate from the bytes of the files."""
        return self.images or self.files // PHOTOGRAPH


def amount_of(config: Mapping, dataset: str) -> Amount:
    """Return the size of a source of a checked config; list a folder for at most COUNTING_S."""
    source = config["sources"][dataset]
    found = taken(unresized(config, dataset), source)
    if size := source.get("resize"):
        return replace(found, kept=found.images * math.prod(size))
    return found


def taken(found: Amount, source: Mapping) -> Amount:
    """Return the amount that a source's `limit`, `copies` and `times` leave, approximately.

    Evaluation images have no copies. There are at most EVALUATED of them for each training image.
    """
    limit = source.get("limit")
    share = min(1.0, limit * (1 + EVALUATED) / found.count) if limit and found.count else 1.0
    files = share * ((source.get("copies") or 1) + EVALUATED) / (1 + EVALUATED)
    rows = files * (source.get("times") or 1)
    images, read, kept = (round(each * rows) for each in (found.images, found.read, found.kept))
    return Amount(images, round(found.files * files), read, kept, found.whole)


def ffcv_bytes(sizes: Amount, source: Mapping) -> int:
    """Return the approximate size of a source's FFCV file (docs/reference/ffcv.md)."""
    if source.get("resize"):
        return 3 * sizes.kept
    if source["layout"] != "image_folder":
        return sizes.files  # images of one size are stored as they are
    pixels = min(sizes.kept, sizes.count * FFCV_SIDE**2 * 3 // 4)  # assumes 4 : 3
    return round(3 * pixels * (1 - FFCV_JPEGS + FFCV_JPEGS / LOSSY))


def unresized(config: Mapping, dataset: str) -> Amount:
    """Return the size of a source before `resize`."""
    source, layout = config["sources"][dataset], config["sources"][dataset]["layout"]
    if "folder" in source:
        return counted(Path(source["folder"]).expanduser())
    archives = sum(file.get("size") or 0 for file in source.get("files", []))
    if layout in IMAGES:
        images, side = IMAGES[layout]
    elif layout == "tiny_imagenet":
        images, side = archives // TINY_IMAGENET[0], TINY_IMAGENET[1]
    elif is_reference(layout) or "size" not in (
        options := with_defaults(layout, source_options(config, dataset))
    ):
        return Amount(0, archives, archives * LOSSY // 3, archives * LOSSY // 3)
    else:
        side = options["size"]
        images = options["count"] if "count" in options else amount_of(config, options["of"]).images
    pixels = images * side**2
    if layout in MADE:
        return Amount(images, 0, pixels, pixels)
    return Amount(images, images * max(BLOCK, side**2 * 3 // (2 * LOSSY)), pixels, pixels)


def size_of(config: Mapping, dataset: str) -> list[int] | None:
    """Return [height, width] of all images of a source, after `resize`; None if only the files tell."""
    source = config["sources"][dataset]
    options = with_defaults(source["layout"], source.get("options", {}))
    sides = {name: side for name, (_, side) in IMAGES.items()} | {"tiny_imagenet": TINY_IMAGENET[1]}
    known = None if is_reference(source["layout"]) else options.get("size") or sides.get(source["layout"])
    size = source.get("resize") or known
    return [size, size] if isinstance(size, int) else size and list(size)


def counted(folder: Path, seconds: float = COUNTING_S) -> Amount:
    """Count the images below a folder, links followed; what cannot be read is skipped.

    The size of the first SIZED files is read, and their mean is used for the others.
    """
    end, rest, known = time.monotonic() + seconds, [str(folder)], set()
    images = sized = files = decoded = 0
    whole = True
    while rest and whole:
        try:
            here = os.stat(place := rest.pop())
            if (here.st_dev, here.st_ino) in known:
                continue
            known.add((here.st_dev, here.st_ino))
            with os.scandir(place) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir():
                        rest.append(entry.path)
                    elif is_image(entry.name) and entry.is_file():  # not a dangling link
                        images += 1
                        if sized < SIZED:
                            size = entry.stat().st_size
                            lossy = entry.name.lower().endswith(LOSSY_SUFFIXES)
                            sized, files = sized + 1, files + size
                            decoded += size * (LOSSY if lossy else LOSSLESS)
                    if time.monotonic() > end:
                        whole = False
                        break
        except OSError:
            continue
    each = images / sized if sized else 0
    pixels = round(decoded * each / 3)
    return Amount(images, round(files * each), pixels, pixels, whole)
