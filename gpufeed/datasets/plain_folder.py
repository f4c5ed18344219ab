"""Read a plain folder of images, not prepared by the workflow, as a manifest; copy and hold out nothing."""

import hashlib
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from gpufeed.core.errors import GpufeedError
from gpufeed.core.image_listing import SUFFIXES, is_image, names_below
from gpufeed.datasets.image_folder import EMPTY, MEAN, NO_CLASS, STD, TRAIN, check, found_in
from gpufeed.datasets.manifest import COLUMNS, DatasetInfo, Manifest
from gpufeed.datasets.staging import NO_SHAPE, header_shape

LAYOUT = "plain_folder"
THREADS = 8  # read headers: on a network disk each answer takes a while

log = logging.getLogger("gpufeed")


def listed(folder: Path) -> Manifest:
    """List the images below a folder by their names, in the order of a prepared dataset; sizes are still 0.

    Classes and splits are those of gpufeed.datasets.image_folder, except that one class is enough. If no
    image lies in a class folder, all images are one class, named after the folder. The log counts what is
    left out. Raises GpufeedError for a folder without images, and as names_below and check do.
    """
    names = names_below(folder)
    found, alone = found_in(names, folder), Path(os.path.abspath(folder)).name
    places, classes, left_out = found.places, found.classes, found.left_out
    if not places:
        places = {name: (TRAIN, [alone, name]) for name in names if is_image(name)}
        classes = [alone] if places else []
        left_out[NO_CLASS] = 0
    if not places:
        raise GpufeedError(
            f"{folder} without an image",
            f"manifest.parquet, or images ({', '.join(SUFFIXES)}), with or without class folders",
            "name the folder of the images, or the manifest.parquet of a prepared dataset",
        )
    check(places, classes, folder)
    counted = {why: count for why, count in left_out.items() if count}
    for why in counted.keys() - {EMPTY}:  # the log names those already
        log.warning("%d %s, in %s", counted[why], why, folder)
    labels = {name: label for label, name in enumerate(classes)}
    rows = [(name, labels[rest[0]], split, *NO_SHAPE) for name, (split, rest) in places.items()]
    rows.sort(key=lambda row: (row[2] != TRAIN, row[1], row[0]))
    info = DatasetInfo(alone, LAYOUT, classes, found.held_out or TRAIN, MEAN, STD, counted)
    return Manifest(folder, info, pd.DataFrame(rows, columns=list(COLUMNS)))


def looked_at(manifest: Manifest) -> Manifest:
    """Return the manifest with the sizes from the file headers (0 without one) and a digest of the files.

    The digest, in `info.source`, covers lengths and times, so that a changed file is noticed. `left_out` is
    dropped: a cache does not depend on it.
    """
    paths = manifest.paths()
    with ThreadPoolExecutor(THREADS) as readers:
        bar = tqdm(readers.map(look_at, paths), total=len(paths), unit=" images", desc="reading headers")
        looked = list(bar)
    digest = hashlib.sha256(repr([state for state, _ in looked]).encode()).hexdigest()
    table = manifest.table.copy()
    table[["height", "width", "channels"]] = [shape for _, shape in looked]
    return Manifest(manifest.root, replace(manifest.info, left_out={}, source={"files": digest}), table)


def look_at(path: Path) -> tuple[tuple[int, int], tuple[int, int, int]]:
    """Return (length, time of the last change in ns) and (H, W, C) of a file; zeros if it is no file."""
    try:
        found = path.stat()
        if not path.is_file():
            return (0, 0), NO_SHAPE
    except OSError:
        return (0, 0), NO_SHAPE
    return (found.st_size, found.st_mtime_ns), header_shape(path)
