"""Write a layout's images to `out/images/<split>/<class>/` and `out/manifest.parquet`, whole or not
at all.
"""

import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import enough_disk, sha256_of
from gpufeed.datasets.archive import is_plain_name
from gpufeed.datasets.manifest import COLUMNS, DatasetInfo, Manifest

NO_SHAPE = (0, 0, 0)


class Staging:
    """Images written to `out/images.partial` and then moved to `out/images`, and their manifest rows."""

    def __init__(self, out: Path):
        self.out = out
        self.partial = out / "images.partial"
        self.rows: list[tuple] = []
        self.origins: dict[str, str] = {}
        self.folders: set[Path] = set()

    def clear(self) -> None:
        """Remove what an earlier run left, the manifest first: it must not outlive its images."""
        (self.out / "manifest.parquet").unlink(missing_ok=True)
        for folder in (self.out / "images", self.partial):
            if folder.exists():
                shutil.rmtree(folder)
        self.partial.mkdir(parents=True)

    def add(
        self,
        split: str,
        class_folder: str,
        name: str,
        label: int,
        data: bytes | Path,
        shape: tuple[int, int, int] | None = None,
    ) -> None:
        """Add one encoded image; its sample id is the number of images before it.

        data: a file is linked, or copied if it cannot be linked. shape: (H, W, C), by default the header's.
        """
        folder = self.partial / split / class_folder
        if folder not in self.folders:
            folder.mkdir(parents=True, exist_ok=True)
            self.folders.add(folder)
        path = image_path(split, class_folder, name)
        if isinstance(data, Path):
            link_or_copy(data, folder / name)
            self.origins[path] = os.fspath(data)
        else:
            with (folder / name).open("xb") as file:  # x: two samples never share a file
                file.write(data)
        shape = shape or header_shape(data)
        self.rows.append((path, label, split, *shape))

    def finish(self, info: DatasetInfo) -> Manifest:
        """Move the images to their place, then write the manifest."""
        os.replace(self.partial, self.out / "images")
        manifest = Manifest(self.out, info, pd.DataFrame(self.rows, columns=list(COLUMNS)), self.origins)
        manifest.write()
        return manifest


@contextmanager
def staging(out: Path) -> Iterator[Staging]:
    """Yield a cleared Staging; on an error its images are removed, and a full disk is a GpufeedError."""
    out = Path(out)
    stage = Staging(out)
    with enough_disk(out):
        try:
            stage.clear()
            yield stage
        except BaseException:
            shutil.rmtree(stage.partial, ignore_errors=True)
            raise


def image_path(split: str, class_folder: str, name: str) -> str:
    """Return the path of an image in a manifest."""
    return f"images/{split}/{class_folder}/{name}"


def png(pixels: np.ndarray) -> bytes:
    """Return uint8 (H, W, 3) or grayscale (H, W) as a lossless PNG."""
    return encoded(pixels, "PNG")


def jpeg(pixels: np.ndarray, quality: int, subsampling: str = "4:2:0") -> bytes:
    """Return uint8 (H, W, 3) or grayscale (H, W) as a baseline JPEG."""
    return encoded(pixels, "JPEG", quality=quality, subsampling=subsampling)


def encoded(pixels: np.ndarray, format: str, **options: Any) -> bytes:
    """Encode an image in memory: Pillow writing into a file loses the errno of a full disk."""
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, format, **options)
    return buffer.getvalue()


def link_or_copy(file: Path, target: Path) -> None:
    """Hard-link a file, or copy it if the file system or its owner does not allow that.

    What cannot be read, a pipe for one, becomes a symbolic link: gpufeed.datasets.quarantine follows it and
    says why.
    Raises OSError where a copy cannot be written.
    """
    try:
        original = file.resolve(strict=True)  # so as not to link a symbolic link
        if not original.is_file():
            raise OSError("not a regular file")
        with suppress(OSError):
            os.link(original, target)
            return
        source = original.open("rb")
    except OSError:
        target.symlink_to(file.absolute())
        return
    with source, target.open("xb") as copy:
        shutil.copyfileobj(source, copy)


def header_shape(data: bytes | Path) -> tuple[int, int, int]:
    """Return (H, W, C) of an encoded image or of a file, from its header; NO_SHAPE if it has none.

    Such a file still gets a row: gpufeed.datasets.quarantine removes it and says why.
    """
    if isinstance(data, Path) and not data.is_file():  # opening a pipe could block forever
        return NO_SHAPE
    try:
        with Image.open(data if isinstance(data, Path) else io.BytesIO(data)) as image:
            return image.height, image.width, len(image.getbands())
    except Exception:  # damaged headers raise OSError, ValueError, SyntaxError, struct.error ...
        return NO_SHAPE


def checksums(archives: list[Path]) -> dict[str, str]:
    """Return the SHA-256 of each file in hex by its name, for DatasetInfo.source."""
    return {path.name: sha256_of(path) for path in archives}


def only_archive(
    archives: list[Path],
    layout: str,
    expected: str = "one archive",
    remedy: str = "list one file in the dataset's row under `sources`",
) -> Path:
    """Return the only archive of a layout; raise GpufeedError if there is not exactly one."""
    if len(archives) != 1:
        names = ", ".join(path.name for path in archives) or "none"
        raise GpufeedError(f"{len(archives)} files for layout {layout}: {names}", expected, remedy)
    return Path(archives[0])


def only_manifest(archives: list[Path], layout: str, of: str) -> Manifest:
    """Return the only archive of a layout, the manifest of the dataset `of`; raise GpufeedError otherwise."""
    remedy = "give the source `options: {of: ...}` and no files"
    return Manifest.read(only_archive(archives, layout, f"the manifest of {of}", remedy))


def malformed(found: str, where: object, expected: str) -> GpufeedError:
    """Return the error for a downloaded file that holds something else than its layout expects."""
    return GpufeedError(f"{found} in {where}", expected, "download the file again and check its sha256")


def check_class_names(classes: list[str], where: object) -> None:
    """Raise GpufeedError unless the names differ and each can be a folder's name."""
    for name in classes:
        if not is_plain_name(name):
            raise malformed(f"class name {name!r}", where, "a name that can be one folder")
    if not classes or len(set(classes)) != len(classes):
        found = f"{len(classes)} class names of which {len(set(classes))} differ,"
        raise malformed(found, where, "at least one class name, and each of them once")
