"""Your own images in one folder a class, as torchvision's ImageFolder reads them.

`train/CLASS/...` beside `val/CLASS/...` (or valid, validation, test), or `CLASS/...` alone, of which a share
of each class is held out. `manifest_in_place` neither copies nor holds out anything.
"""

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from tqdm import tqdm

from gpufeed.core.config_sources import checked_options
from gpufeed.core.errors import GpufeedError
from gpufeed.core.image_listing import (
    FOLDER,
    NAMES,
    SUFFIXES,
    is_hidden,
    is_image,
    names_below,
    names_digest,
)
from gpufeed.core.quantities import plural
from gpufeed.datasets import archive
from gpufeed.datasets.archive import is_plain_name
from gpufeed.datasets.manifest import COLUMNS, DatasetInfo, Manifest
from gpufeed.datasets.quantity import chosen
from gpufeed.datasets.staging import (
    NO_SHAPE,
    checksums,
    header_shape,
    image_path,
    only_archive,
    staging,
)
from gpufeed.decoders.encoded_file import MOST_BYTES

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TRAIN, EVALUATION = "train", ("val", "valid", "validation", "test")
OF_SPLITS = (TRAIN, "val", "test")  # in names such as Training and seg_test
SPLITS = "if they are splits, name them train and val, with folders of classes in them"
NO_IMAGE = "files are not named like images and are not used"
NO_CLASS = "images lie in no class folder and are not used"
NO_SPLIT = "images lie in folders beside those of the two splits and are not used"
EMPTY = "folders hold no training images and are not classes"
NOT_PLAIN = "a colon, a backslash, a control character, or bytes that are not UTF-8"

log = logging.getLogger("gpufeed")


@dataclass(frozen=True)
class Options:
    """evaluation_share: of each class, drawn by `seed`, if no folder holds an evaluation split."""

    evaluation_share: float = 0.1
    seed: int = 0


@dataclass(frozen=True)
class Placed:
    """Where each image goes. places: name in the source -> (split, class and folders in it, file)."""

    places: dict[str, tuple[str, str, str]]
    classes: list[str]
    evaluation: str
    left_out: dict[str, int]

    @cached_property
    def labels(self) -> dict[str, int]:
        return {name: label for label, name in enumerate(self.classes)}

    def label(self, folder: str) -> int:
        """Return the label of an image in a class folder or in a folder below one."""
        return self.labels[folder.partition("/")[0]]


def reorganise(
    archives: list[Path], out: Path, dataset: str, options: dict, limit: int | None = None
) -> Manifest:
    """Link, copy or write `out/images/<split>/<class>/...`, bytes unchanged, and their manifest.

    archives: a folder, or one zip or tar. limit: training images at most, as gpufeed.datasets.quantity
    chooses them. The manifest is sorted by split (train first), label and name. Raises GpufeedError for
    options that are unknown or impossible, a damaged archive, fewer than two classes, an evaluation class
    without training images, and a name that cannot be kept.
    """
    choice = Options(**checked_options("image_folder", options))
    source = only_archive(archives, "image_folder")
    names = names_below(source) if source.is_dir() else archive.names(source)
    found = placed(names, choice, source)
    if limit is not None:
        found = replace(found, places=within(found, limit))
    with staging(out) as stage:
        with tqdm(total=len(found.places), desc=f"{dataset}: images", unit=" images", disable=None) as bar:
            for name, content in contents(source, found.places):
                split, folder, file = found.places[name]
                stage.add(split, folder, file, found.label(folder), content)
                bar.update()
        stage.rows.sort(key=lambda row: (row[2] != TRAIN, row[1], row[0]))
        info = (dataset, "image_folder", found.classes, found.evaluation, MEAN, STD, found.left_out)
        return stage.finish(DatasetInfo(*info, source={**asdict(choice), **origin(source, names)}))


def origin(source: Path, names: list[str] | None = None) -> dict[str, str]:
    """Return what identifies a folder or an archive of one, for DatasetInfo.source.

    names: what is below the folder, if known. Raises GpufeedError as names_below does.
    """
    if source.is_file():
        return checksums([source])
    names = names_below(source) if names is None else names
    return {FOLDER: str(source.resolve()), NAMES: names_digest(names)}


def within(found: Placed, limit: int) -> dict[str, tuple[str, str, str]]:
    """Return the places of the images that `limit` keeps."""
    rows = [(image_path(*place), found.label(place[1]), place[0]) for place in found.places.values()]
    keep = chosen(pd.DataFrame(rows, columns=["path", "label", "split"]), limit)
    return {name: place for (name, place), stays in zip(found.places.items(), keep, strict=True) if stays}


def contents(source: Path, places: Mapping[str, object]) -> Iterator[tuple[str, "bytes | Path"]]:
    """Yield (name, file or its bytes) of each image, in the order of the source."""
    if source.is_dir():
        yield from ((name, source / name) for name in places)
        return
    for member in archive.members(source, MOST_BYTES):
        if member.name in places:
            yield member.name, member.read()


@dataclass(frozen=True)
class Found:
    """Where the images of a source lie.

    places: name -> split and the rest of its path; classes: of the training images; held_out: the folder of
    the evaluation split, None without one.
    """

    places: dict[str, tuple[str, list[str]]]
    classes: list[str]
    held_out: str | None
    left_out: Counter[str]


def found_in(names: list[str], source: Path) -> Found:
    """Find the images among some files; source: for messages."""
    images = [name for name in names if is_image(name)]
    left_out = Counter({NO_IMAGE: sum(not name.endswith("/") for name in names) - len(images)})
    parts = {name: name.split("/") for name in images}
    way: list[str] = []  # to the class folders
    if len({first for first, *_ in parts.values()}) == 1 and any(len(part) > 2 for part in parts.values()):
        way = [images[0].split("/")[0]]  # one folder around all
        parts = {name: part[1:] for name, part in parts.items()}
    nested = {part[0] for part in parts.values() if len(part) > 2}
    held_out = next((name for name in EVALUATION if name in nested), None)
    places: dict[str, tuple[str, list[str]]] = {}  # split, and the rest of the way
    for name, part in parts.items():
        split, rest = (part[0], part[1:]) if TRAIN in nested else (TRAIN, part)
        if split not in (TRAIN, held_out):
            left_out[NO_SPLIT] += 1
        elif len(rest) < 2:
            left_out[NO_CLASS] += 1
        else:
            places[name] = (split, rest)
    classes = sorted({rest[0] for split, rest in places.values() if split == TRAIN})
    if empty := sorted(folders_in(names, [*way, TRAIN] if TRAIN in nested else way) - set(classes)):
        left_out[EMPTY] = len(empty)
        log.warning("%d %s: %s, in %s", len(empty), EMPTY, ", ".join(empty), source)
    if len(classes) > 1 and all(any(word in name.lower() for word in OF_SPLITS) for name in classes):
        log.warning("%s are taken for classes, in %s: %s", ", ".join(classes), source, SPLITS)
    return Found(places, classes, held_out if TRAIN in nested else None, left_out)


def placed(names: list[str], choice: Options, source: Path) -> Placed:
    """Return where the images among some files go; source: for messages."""
    found = found_in(names, source)
    places, classes, held_out, left_out = found.places, found.classes, found.held_out, found.left_out
    if len(classes) < 2:
        raise GpufeedError(
            f"{plural(len(classes), 'class folder')} with training images in {source}",
            "at least two: CLASS/IMAGE, or train/CLASS/IMAGE and val/CLASS/IMAGE",
            f"sort the images ({', '.join(SUFFIXES)}) into such folders",
        )
    check(places, classes, source)
    if held_out is None:
        held_out = EVALUATION[0]
        for name in drawn(places, classes, choice):
            places[name] = (held_out, places[name][1])
    if not any(split == held_out for split, _ in places.values()):
        raise GpufeedError(
            f"one image a class in {source}",
            "at least two, since some are held out for evaluation",
            "add images, or make folders train and val",
        )
    whole = {name: (split, "/".join(rest[:-1]), rest[-1]) for name, (split, rest) in places.items()}
    return Placed(whole, classes, held_out, {why: count for why, count in left_out.items() if count})


def folders_in(names: list[str], way: list[str]) -> set[str]:
    """Return the folders in the one that `way` leads to. names: as core.image_listing.names_below's."""
    parts = (name.split("/")[:-1] for name in names if not is_hidden(name))
    return {part[len(way)] for part in parts if part[: len(way)] == way and len(part) > len(way)}


def drawn(places: Mapping[str, tuple[str, list[str]]], classes: list[str], choice: Options) -> list[str]:
    """Return the images to hold out: a share of each class, at least one image and never all."""
    of_class: dict[str, list[str]] = {name: [] for name in classes}
    for name, (_, rest) in places.items():
        of_class[rest[0]].append(name)
    found = []
    for label, names in enumerate(of_class.values()):
        count = min(max(1, round(len(names) * choice.evaluation_share)), len(names) - 1)
        random = np.random.default_rng([choice.seed, label])
        found += [names[place] for place in random.choice(len(names), count, replace=False)]
    return found


def check(places: Mapping[str, tuple[str, list[str]]], classes: list[str], source: Path) -> None:
    """Raise GpufeedError for evaluation classes without training images, and names that cannot be kept."""
    if strange := sorted({rest[0] for _, rest in places.values()} - set(classes)):
        raise GpufeedError(
            f"{plural(len(strange), 'evaluation class', 'evaluation classes')} without training images, "
            f"first {strange[0]!r}, in {source}",
            "the classes of train",
            "add them to train, or rename the folder of the evaluation split",
        )
    if bad := [name for name, (_, rest) in places.items() if not all(map(can_be_kept, rest))]:
        raise GpufeedError(
            f"{plural(len(bad), 'image name')} with {NOT_PLAIN}, the first {bad[0]!r}, in {source}",
            "names without them",
            "rename these files and folders",
        )


def can_be_kept(name: str) -> bool:
    """Return whether a name is possible for a file on any node and can be text in a manifest."""
    return is_plain_name(name) and not any("\ud800" <= char <= "\udfff" for char in name)


IN_PLACE = "plain_folder"
THREADS = 8  # to read headers: on a network disk each read waits


def manifest_in_place(folder: Path) -> Manifest:
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
    info = DatasetInfo(alone, IN_PLACE, classes, found.held_out or TRAIN, MEAN, STD, counted)
    return Manifest(folder, info, pd.DataFrame(rows, columns=list(COLUMNS)))


def read_headers(manifest: Manifest) -> Manifest:
    """Return the manifest with the sizes from the file headers (0 without one) and a digest of the files.

    The digest, in `info.source`, covers the folder, lengths and times, so that another folder and a changed
    file are noticed. `left_out` is dropped: a cache does not depend on it.
    """
    paths = manifest.paths()
    with ThreadPoolExecutor(THREADS) as readers:
        bar = tqdm(readers.map(read_header, paths), total=len(paths), unit=" images", desc="reading headers")
        looked = list(bar)
    made_of = [str(manifest.root.resolve()), *(state for state, _ in looked)]
    digest = hashlib.sha256(repr(made_of).encode()).hexdigest()
    table = manifest.table.copy()
    table[["height", "width", "channels"]] = [shape for _, shape in looked]
    return Manifest(manifest.root, replace(manifest.info, left_out={}, source={"files": digest}), table)


def read_header(path: Path) -> tuple[tuple[int, int], tuple[int, int, int]]:
    """Return (length, time of the last change in ns) and (H, W, C) of a file; zeros if it is no file."""
    try:
        found = path.stat()
        if not path.is_file():
            return (0, 0), NO_SHAPE
    except OSError:
        return (0, 0), NO_SHAPE
    return (found.st_size, found.st_mtime_ns), header_shape(path)
