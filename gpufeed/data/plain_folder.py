"""A folder of images that nobody prepared, as a manifest: nothing is copied, and nothing is held out."""

import hashlib
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from gpufeed.data.image_folder import EMPTY, MEAN, NO_CLASS, STD, TRAIN, check, found_in
from gpufeed.data.listing import SUFFIXES, is_image, names_below
from gpufeed.data.manifest import COLUMNS, DatasetInfo, Manifest
from gpufeed.data.staging import NO_SHAPE, header_shape
from gpufeed.errors import GpufeedError

LAYOUT = "plain_folder"
THREADS = 8  # read headers: on a network disk each answer takes a while

log = logging.getLogger("gpufeed")


def listed(folder: Path) -> Manifest:
    """The images below a folder, by their names alone, in the order of a prepared one; sizes are 0 as yet.

    Classes and splits are those of gpufeed.data.image_folder, but that one class is enough. Images that lie
    in no folder of a class are a class of the folder's name if there are no others. What is left out is
    counted in the log. Raises GpufeedError for a folder without images, and as names_below and check do.
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
            f"manifest.parquet, or images ({', '.join(SUFFIXES)}), in folders of their classes or in none",
            "name the folder of the images, or the manifest.parquet of a prepared dataset",
        )
    check(places, classes, folder)
    told = {why: count for why, count in left_out.items() if count}
    for why in told.keys() - {EMPTY}:  # those are named in the log already
        log.warning("%d %s, in %s", told[why], why, folder)
    labels = {name: label for label, name in enumerate(classes)}
    rows = [(name, labels[rest[0]], split, *NO_SHAPE) for name, (split, rest) in places.items()]
    rows.sort(key=lambda row: (row[2] != TRAIN, row[1], row[0]))
    info = DatasetInfo(alone, LAYOUT, classes, found.held_out or TRAIN, MEAN, STD, told)
    return Manifest(folder, info, pd.DataFrame(rows, columns=list(COLUMNS)))


def looked_at(manifest: Manifest) -> Manifest:
    """The same with the sizes that the headers say, 0 where there is none, and what tells changed files.

    That is a digest over their lengths and times, in `info.source`. What was left out is forgotten: a cache
    does not depend on it.
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
    """(length, time of the last change in ns) and (H, W, C) of a file; zeros for what is none."""
    try:
        found = path.stat()
        if not path.is_file():
            return (0, 0), NO_SHAPE
    except OSError:
        return (0, 0), NO_SHAPE
    return (found.st_size, found.st_mtime_ns), header_shape(path)
