"""Published results: a folder of results whose documents lie in archives, one an experiment.

NAME.tar.xz holds files below the folder that it lies in, at the paths that a run wrote. Standard library
only: used while planning.
"""

import fcntl
import hashlib
import io
import json
import lzma
import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import NO_ENTRY, NO_ROOM, refusal, whole

ENDING = ".tar.xz"
XZ = b"\xfd7zXZ\x00"  # how a file of this format begins
LIST = "files.json"  # written last: a copy without it, or without one of its files, is not whole
DAY_S = 86400
BROKEN = (tarfile.TarError, lzma.LZMAError, EOFError)
_held: dict[Path, int] = {}  # copies that this process reads: file descriptors with a shared lock


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
    """Write the files of an archive that are missing below a folder, each whole; return where all lie.

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
                if not found[-1].is_file():
                    with whole(found[-1], shared=True) as partial:
                        partial.write_bytes(tar.extractfile(info).read())
                        partial.chmod(info.mode & 0o755 | 0o600)
                        os.utime(partial, (time.time(), info.mtime))
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

    The copy lies in the system's temporary folder, named by a digest of the archives. Other files are links
    to those of the folder. What a cleaner removed is written again. Raises GpufeedError for a damaged
    archive, and if the copy cannot be written or its place is another user's.
    """
    folder = Path(folder)
    try:
        archives = archives_of(folder)
        return _copy(folder.resolve(), [path.resolve() for path in archives]) if archives else folder
    except OSError as error:
        known = refusal(error, tempfile.gettempdir()) if error.errno in NO_ROOM | NO_ENTRY else None
        raise known or GpufeedError(
            f"{folder}, whose archives cannot be unpacked: {error}",
            "archives that you may read, and room in the temporary folder",
            "look at the file that is named, or set TMPDIR to another folder",
        ) from error


def _copy(folder: Path, archives: list[Path]) -> Path:
    left_out = (ENDING, ".html", ".py")
    loose = [path for path in folder.rglob("*") if not path.name.endswith(left_out) and path.is_file()]
    digest = hashlib.sha256(str(folder).encode())
    for path in archives:
        digest.update(f"{path.relative_to(folder)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    own = Path(tempfile.gettempdir()) / f"gpufeed-published-{os.getuid()}"
    own.mkdir(mode=0o700, exist_ok=True)
    if own.stat().st_uid != os.getuid():
        raise GpufeedError(f"{own} of another user", "a folder of yours, or none", "set TMPDIR to another")
    kept = own / digest.hexdigest()[:16]
    place = kept / folder.name
    _hold(kept)
    links = {place / path.relative_to(folder): path for path in loose}
    if not _is_whole(kept, place):
        files = [one for path in archives for one in extract(path, place / path.parent.relative_to(folder))]
        with whole(kept / LIST, shared=True) as partial:
            names = [one.relative_to(place).as_posix() for one in files]
            partial.write_text(json.dumps({"folder": str(folder), "files": names}))
        _remove_old(own, folder)
    for link, path in links.items():
        if not os.path.lexists(link):
            link.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):  # another process was faster
                link.symlink_to(path)
    for path in place.rglob("*"):
        if path.is_symlink() and path not in links:
            path.unlink(missing_ok=True)
    return place


def _is_whole(kept: Path, place: Path) -> bool:
    try:
        return all((place / name).is_file() for name in json.loads((kept / LIST).read_text())["files"])
    except (OSError, ValueError, KeyError):
        return False


def _hold(kept: Path) -> None:
    """Keep other processes from removing a copy until this one ends, where the filesystem has locks."""
    while True:
        kept.mkdir(exist_ok=True)
        if kept in _held and os.path.samestat(os.fstat(_held[kept]), kept.stat()):
            return
        number = os.open(kept, os.O_RDONLY)
        with suppress(OSError):
            fcntl.flock(number, fcntl.LOCK_SH)
        with suppress(FileNotFoundError):  # removed in between
            if os.path.samestat(os.fstat(number), kept.stat()):
                _held[kept] = number
                return
        os.close(number)


def _remove_old(own: Path, folder: Path) -> None:
    """Remove earlier copies of this folder, and those of folders that are gone, if no process holds them.

    A copy without a list is being made, or a process was killed meanwhile: it stays for a day.
    """
    for kept in own.iterdir():
        if kept in _held:
            continue
        with suppress(OSError):
            try:
                of = Path(json.loads((kept / LIST).read_text())["folder"])
                old = of == folder or not of.exists()
            except (OSError, ValueError, KeyError):
                old = time.time() - kept.stat().st_mtime > DAY_S
            if old:
                number = os.open(kept, os.O_RDONLY)
                try:
                    fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(kept, ignore_errors=True)
                finally:
                    os.close(number)
