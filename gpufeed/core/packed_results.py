"""Published results: a folder of results whose documents lie in archives, one an experiment.

NAME.tar.xz holds files below the folder that it lies in, at the paths that a run wrote. Standard library
only: used while planning.
"""

import io
import lzma
import os
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import NO_ENTRY, NO_ROOM, refusal

ENDING = ".tar.xz"
XZ = b"\xfd7zXZ\x00"  # how a file of this format begins
BROKEN = (tarfile.TarError, lzma.LZMAError, EOFError)
# folder and archives as they are -> its copy, which this process removes at its end
_copies: dict[tuple, tuple[tempfile.TemporaryDirectory, Path]] = {}


def pack(folder: Path, paths: Iterable[Path], archive: Path) -> None:
    """Write files below a folder to an archive: the same bytes whenever, wherever and by whomever."""
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w:xz", format=tarfile.PAX_FORMAT, preset=9) as tar:
        for path in sorted(paths, key=lambda path: (path.suffix, path)):  # what is alike side by side
            info = tarfile.TarInfo(path.relative_to(folder).as_posix())
            info.size, info.mode = path.stat().st_size, 0o644  # and neither time nor owner
            with path.open("rb") as file:
                tar.addfile(info, file)
    archive.write_bytes(body.getvalue())


def extract(archive: str | Path, folder: Path) -> list[Path]:
    """Write the files of an archive below a folder; return where they lie.

    Raises GpufeedError for a damaged archive, and for a member that is no file or would lie elsewhere.
    `TarFile.extractall` checks members from Python 3.11.4 on only.
    """
    found = []
    try:
        with tarfile.open(archive) as tar:
            for info in tar:
                if info.isdir():
                    continue
                place = PurePosixPath(info.name)
                if not info.isreg() or place.is_absolute() or ".." in place.parts:
                    raise _unusable(archive, f"with {info.name!r}, which is no file below its folder")
                found.append(folder / place)
                found[-1].parent.mkdir(parents=True, exist_ok=True)
                found[-1].write_bytes(tar.extractfile(info).read())
                found[-1].chmod(info.mode & 0o755 | 0o600)
                os.utime(found[-1], (time.time(), info.mtime))
    except BROKEN as error:
        raise _unusable(archive, f"which cannot be unpacked: {error}") from error
    return found


def _unusable(archive: str | Path, why: str) -> GpufeedError:
    return GpufeedError(
        f"{archive} {why}",
        "an archive of published results, as the repository has it",
        "if it is published, restore it: git checkout; if it is yours, move it elsewhere",
    )


def archives_of(folder: Path) -> list[Path]:
    """Return the archives of published results below a folder, if any lies in itself or in its children.

    Those in a folder `reference` below it are left out, and so are archives that `pack` did not write.
    """
    near = [path for pattern in (f"*{ENDING}", f"*/*{ENDING}") for path in folder.glob(pattern)]
    if not any(map(_is_ours, _outside_reference(near, folder))):
        return []
    return [path for path in _outside_reference(folder.rglob(f"*{ENDING}"), folder) if _is_ours(path)]


def _outside_reference(paths: Iterable[Path], folder: Path) -> Iterator[Path]:
    return (path for path in sorted(paths) if "reference" not in path.relative_to(folder).parts[:-1])


def _is_ours(path: Path) -> bool:
    """Return whether the first member of an archive is a file without a time, as `pack` writes it."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        if file.read(len(XZ)) != XZ:
            return False
    try:
        with tarfile.open(path, "r:xz") as tar:
            first = tar.next()
    except BROKEN as error:
        raise _unusable(path, f"which cannot be unpacked: {error}") from error
    return first is not None and first.isreg() and first.mtime == 0


def unpacked(folder: str | Path) -> Path:
    """Return the folder itself, or with archives in it a copy that has their files in their places.

    The copy lies in the system's temporary folder until this process ends. Other files are links to those of
    the folder. Raises GpufeedError for a damaged archive, and if the copy cannot be written.
    """
    folder = Path(folder)
    try:
        if not (archives := archives_of(folder)):
            return folder
        whole, states = folder.resolve(), [(path, path.stat()) for path in archives]
        key = (whole, *((path, state.st_mtime_ns, state.st_size) for path, state in states))
        if key not in _copies or not _copies[key][1].is_dir():
            _copies[key] = _copy(whole, [path.resolve() for path in archives])
        return _copies[key][1]
    except OSError as error:
        known = refusal(error, tempfile.gettempdir()) if error.errno in NO_ROOM | NO_ENTRY else None
        raise known or GpufeedError(
            f"{folder}, whose archives cannot be unpacked: {error}",
            "archives that you may read, and room in the temporary folder",
            "look at the file that is named, or set TMPDIR to another folder",
        ) from error


def _copy(folder: Path, archives: list[Path]) -> tuple[tempfile.TemporaryDirectory, Path]:
    kept = tempfile.TemporaryDirectory(prefix="gpufeed-published-", ignore_cleanup_errors=True)
    place = Path(kept.name) / folder.name
    for path in archives:
        extract(path, place / path.parent.relative_to(folder))
    for path in folder.rglob("*"):
        if path.is_file() and not path.name.endswith((ENDING, ".html", ".py")):
            link = place / path.relative_to(folder)
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.exists():
                link.symlink_to(path)
    return kept, place
