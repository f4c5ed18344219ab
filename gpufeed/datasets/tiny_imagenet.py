"""Tiny ImageNet from its zip: class folders for both splits, so that plain ImageFolder sees all classes.

Labels are indices into `wnids.txt`, which is not sorted. The test images have no public labels.
Source: Stanford CS231n, 64x64 crops of 200 ImageNet classes.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from gpufeed.core.config_sources import checked_options
from gpufeed.core.errors import GpufeedError
from gpufeed.datasets.archive import Member, members
from gpufeed.datasets.manifest import DatasetInfo, Manifest
from gpufeed.datasets.staging import (
    Staging,
    check_class_names,
    checksums,
    header_shape,
    malformed,
    only_archive,
    staging,
)

# of the training set's pixels, RGB, in 0..1
MEAN = (0.4802, 0.4481, 0.3975)
STD = (0.2770, 0.2691, 0.2821)

ANNOTATIONS = "val/val_annotations.txt"
MOST_BYTES = 2**24  # of an image of 64 x 64 pixels, or of the annotations
COLUMNS = 6  # file, wnid and a box of four numbers
NO_LABEL = "test images have no public labels and are not used"
ELSEWHERE = "files are not part of the layout and are not used"
KNOWN = {"wnids.txt", "words.txt", ANNOTATIONS}


@dataclass(frozen=True)
class Contents:
    """What the text files of the archive say. annotations: validation file -> wnid."""

    top: str  # name of the top folder with a slash, or ""
    wnids: list[str]
    annotations: dict[str, str]
    images: int  # files that will be written


def reorganise(archives: list[Path], out: Path, dataset: str, options: dict) -> Manifest:
    """Write `out/images/train/<wnid>/*.JPEG` and `out/images/val/<wnid>/*.JPEG`, bytes unchanged.

    Works for the full archive and for one with fewer classes. The manifest is sorted by split (train first),
    label and file name. Raises GpufeedError for a damaged archive, a class without training images, and an
    annotation that is missing, repeated or malformed, or that names an unknown class or no file.
    """
    checked_options("tiny_imagenet", options)
    archive = only_archive(archives, "tiny_imagenet")
    with staging(out) as stage:
        contents = _read_contents(archive)
        left_out = _place_images(stage, archive, contents, dataset)
        stage.rows.sort(key=lambda row: (row[2], row[1], row[0]))  # split ("train" < "val"), label, path
        _check_complete(stage, contents, archive)
        info = DatasetInfo(
            dataset, "tiny_imagenet", contents.wnids, "val", MEAN, STD, left_out, checksums([archive])
        )
        return stage.finish(info)


def parse_wnids(text: str) -> list[str]:
    """Return the class ids of `wnids.txt` in its order: label i is line i."""
    wnids = text.split()
    check_class_names(wnids, "wnids.txt")
    return wnids


def parse_annotations(text: str, wnids: Collection[str]) -> dict[str, str]:
    """Return each validation file's wnid, from the tab-separated rows of `val_annotations.txt` (no header).

    Raises GpufeedError, with the line's number, for a row without 6 columns, an unknown wnid and a file named
    twice.
    """
    annotations: dict[str, str] = {}
    known = set(wnids)
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.removesuffix("\r")
        if not line:
            continue
        columns = line.split("\t")
        if len(columns) != COLUMNS:
            raise _bad_row(
                number, f"{len(columns)} tab-separated columns", f"{COLUMNS}: file, wnid, x0, y0, x1, y1"
            )
        file, wnid = columns[:2]
        if wnid not in known:
            raise _bad_row(number, f"unknown class {wnid!r}", "a wnid that wnids.txt lists")
        if file in annotations:
            raise _bad_row(number, f"{file!r} for the second time", "one row a file")
        annotations[file] = wnid
    return annotations


def _bad_row(number: int, found: str, expected: str) -> GpufeedError:
    return GpufeedError(
        f"line {number} of {ANNOTATIONS}: {found}",
        expected,
        "download the archive again and check its sha256",
    )


def _read_contents(archive: Path) -> Contents:
    """Read the text files and count the images, in one pass over the names."""
    texts, names = {}, []
    for member in members(archive, MOST_BYTES):
        names.append(member.name)
        if member.name.endswith(("wnids.txt", "val_annotations.txt")):
            texts[member.name] = member.read().decode("utf-8-sig", "replace")
    tops = [
        name.removesuffix("wnids.txt") for name in texts if name == "wnids.txt" or name.endswith("/wnids.txt")
    ]
    if len(tops) != 1 or tops[0].count("/") > 1:
        raise malformed(f"{len(tops)} files wnids.txt", archive, "one, in the archive's top folder")
    top = tops[0]
    if top + ANNOTATIONS not in texts:
        raise malformed(f"no {ANNOTATIONS}", archive, "the labels of the validation images")
    wnids = parse_wnids(texts[top + "wnids.txt"])
    images = sum(
        _is_train_image(name.removeprefix(top)) or name.startswith(top + "val/images/") for name in names
    )
    return Contents(top, wnids, parse_annotations(texts[top + ANNOTATIONS], wnids), images)


def _is_train_image(name: str) -> bool:
    """Return whether a name is train/<wnid>/images/<file>."""
    parts = name.split("/")
    return len(parts) == 4 and parts[0] == "train" and parts[2] == "images"


def _place_images(stage: Staging, archive: Path, contents: Contents, dataset: str) -> dict[str, int]:
    """Write every labelled image; return sentence -> number of the files left out."""
    labels = {wnid: label for label, wnid in enumerate(contents.wnids)}
    left_out: dict[str, int] = {}
    with tqdm(total=contents.images, desc=f"{dataset}: images", unit=" images", disable=None) as bar:
        for member, name in _below_top(archive, contents.top):
            if reason := _reason_to_leave_out(name):
                left_out[reason] = left_out.get(reason, 0) + 1
                continue
            if _is_auxiliary(name):
                continue
            split, wnid = _split_and_class(name, contents, archive)
            data = member.read()
            shape = header_shape(data)
            stage.add(split, wnid, name.rpartition("/")[2], labels[wnid], data, shape)
            bar.update()
    return left_out


def _below_top(archive: Path, top: str) -> Iterator[tuple[Member, str]]:
    """Yield each member with its name below the top folder; outside it, with "/" and its whole name."""
    for member in members(archive, MOST_BYTES):
        inside = member.name.startswith(top)
        yield member, member.name.removeprefix(top) if inside else "/" + member.name


def _is_auxiliary(name: str) -> bool:
    """Return whether it is a word list, the annotations read before, or boxes, which are not needed."""
    return name in KNOWN or (name.startswith("train/") and name.endswith("_boxes.txt"))


def _reason_to_leave_out(name: str) -> str | None:
    """Return a sentence for an image that gets no row; None for the others."""
    if name.startswith("test/images/"):
        return NO_LABEL
    val_image = name.startswith("val/images/") and name.count("/") == 2
    return None if val_image or _is_train_image(name) or _is_auxiliary(name) else ELSEWHERE


def _split_and_class(name: str, contents: Contents, archive: Path) -> tuple[str, str]:
    """Return ("train" or "val", wnid) of an image; raise GpufeedError if it has none."""
    split, second, *_, file = name.split("/")
    if split == "val":
        if file not in contents.annotations:
            where = f"{ANNOTATIONS} of {archive}"
            raise malformed(f"no row for val/images/{file}", where, "one row for every validation image")
        return "val", contents.annotations[file]
    if second not in contents.wnids:
        raise malformed(f"training images of {second!r}", archive, "only classes that wnids.txt lists")
    return "train", second


def _check_complete(stage: Staging, contents: Contents, archive: Path) -> None:
    """Raise GpufeedError for an annotation without its file and a class without training images."""
    written = {row[0].rpartition("/")[2] for row in stage.rows if row[2] == "val"}
    if absent := sorted(set(contents.annotations) - written):
        raise malformed(
            f"{len(absent)} rows of {ANNOTATIONS} that name no file, the first {absent[0]!r},",
            archive,
            "a file in val/images for every row",
        )
    trained = {row[1] for row in stage.rows if row[2] == "train"}
    if empty := [wnid for label, wnid in enumerate(contents.wnids) if label not in trained]:
        raise malformed(
            f"no training images for {len(empty)} of {len(contents.wnids)} classes, the first {empty[0]},",
            archive,
            "images in train/<wnid>/images for every line of wnids.txt",
        )
