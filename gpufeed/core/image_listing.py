"""Image files below a folder, by name only, and a digest that changes with the names.

Standard library only: the workflow imports this while it plans.
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from gpufeed.core.errors import GpufeedError

# as torchvision.datasets.folder.IMG_EXTENSIONS has them
SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

FOLDER, NAMES = "folder", "names"  # keys in a dataset's content: the path, and the digest of the names


def is_image(name: str) -> bool:
    """Return whether a name is that of an image; hidden files, such as those of macOS, are not."""
    last = name.rpartition("/")[2]
    return last.lower().endswith(SUFFIXES) and not is_hidden(name)


def is_hidden(name: str) -> bool:
    """Return whether a file, or a folder on the way to it, is hidden."""
    return any(part.startswith(".") for part in name.split("/"))


def files_below(folder: Path) -> list[str]:
    """Return the files below a folder but hidden ones, links followed: sorted relative names with `/`.

    Raises GpufeedError as `names_below` does.
    """
    return [name for name in names_below(folder) if not name.endswith("/")]


def names_below(folder: Path) -> list[str]:
    """Return the names of `files_below`, and the folders with a trailing slash.

    Raises GpufeedError if it is no folder, or if a folder below it may not be read.
    """
    if not folder.is_dir():
        is_file = folder.exists()
        raise GpufeedError(
            f"{folder}, which is a file" if is_file else f"no folder {folder}",
            "a folder of images in folders of their classes",
            "unpack it, or name the archive under `files` of its source"
            if is_file
            else "correct `folder` in its source, or mount what it lies on",
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
    """Yield names; above: (device, inode) of the folders on the way, to stop at link cycles."""
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
    """Return a digest of the image names among some files."""
    images = "\0".join(name for name in names if is_image(name))
    return hashlib.sha256(os.fsencode(images)).hexdigest()[:16]
