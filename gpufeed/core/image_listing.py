"""The image files below a folder, by name alone: which they are, and whether they are still the same ones.

Imported while the workflow plans, so it needs the standard library alone.
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from gpufeed.core.errors import GpufeedError

# as torchvision.datasets.folder.IMG_EXTENSIONS has them
SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

FOLDER, NAMES = "folder", "names"  # keys of where they lie and of their digest in what a dataset was made of


def is_image(name: str) -> bool:
    """Whether a file is an image by its name; hidden files are none, such as those that macOS leaves."""
    last = name.rpartition("/")[2]
    return last.lower().endswith(SUFFIXES) and not is_hidden(name)


def is_hidden(name: str) -> bool:
    """Whether a file, or a folder on the way to it, is hidden."""
    return any(part.startswith(".") for part in name.split("/"))


def files_below(folder: Path) -> list[str]:
    """All files below a folder but hidden ones, links followed: names from there on, with `/`, sorted.

    Raises GpufeedError as `names_below` does.
    """
    return [name for name in names_below(folder) if not name.endswith("/")]


def names_below(folder: Path) -> list[str]:
    """As `files_below`, and the folders, with a slash at the end.

    Raises GpufeedError where that is no folder, or a folder below it may not be read.
    """
    if not folder.is_dir():
        raise GpufeedError(
            f"no folder {folder}",
            "a folder of images in folders of their classes",
            "correct `folder` in its source, or mount what it lies on",
        )
    try:
        return sorted(_walk(folder, "", ()))
    except OSError as error:
        raise GpufeedError(
            f"{error.filename}: {error.strerror}",
            "folders that you may read",
            f"ask for access, or name another folder than {folder}",
        ) from error


def _walk(folder: Path, prefix: str, above: tuple[tuple[int, int], ...]) -> Iterator[str]:
    """above: device and inode of the folders on the way, so that a link to one of them is no endless way."""
    found = os.stat(folder)
    here = (found.st_dev, found.st_ino)
    if here in above:
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield f"{prefix}{entry.name}/"
                yield from _walk(Path(entry.path), f"{prefix}{entry.name}/", (*above, here))
            else:
                yield f"{prefix}{entry.name}"


def names_digest(names: list[str]) -> str:
    """A digest of the images among some files: another one once some came, went or were renamed."""
    images = "\0".join(name for name in names if is_image(name))
    return hashlib.sha256(os.fsencode(images)).hexdigest()[:16]
