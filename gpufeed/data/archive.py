"""Reading zip and tar archives that may be damaged or hostile.

Nothing is unpacked by the archive's own wishes: members are handed over as names and bytes, and the
caller decides where they go. A name that could climb out of a folder never gets that far.
"""

import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpufeed.errors import GpufeedError

DAMAGE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    RuntimeError,  # zipfile: encrypted member, unknown compression
    UnicodeDecodeError,
    ValueError,  # zipfile, tarfile: numbers in a header that cannot be
)


@dataclass(frozen=True)
class Member:
    """A regular file of an archive: its path with forward slashes, its size in bytes, its content.

    `read` works only until the iteration moves on.
    """

    name: str
    size: int
    read: Callable[[], bytes]


def members(path: Path) -> Iterator[Member]:
    """The regular files of a zip or tar archive (gzip, bzip2, xz or none), in the archive's order.

    Raises GpufeedError for a damaged archive and, instead of handing over the member, for a name that
    climbs out (absolute, `..`), a link of any kind, a device, and a name that comes twice.
    """
    with reading(path):
        yield from _zip_members(path) if zipfile.is_zipfile(path) else _tar_members(path)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns what the readers raise for a damaged file inside the block into a GpufeedError."""
    try:
        yield
    except FileNotFoundError as error:
        raise GpufeedError(f"no file {path}", "the dataset's archive", "run the download again") from error
    except (*DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's errors, not the archive's
            raise
        raise GpufeedError(
            f"{path} is damaged or cut off ({type(error).__name__}: {error})",
            "a whole archive",
            f"put a whole copy there, or move {path} away and run the command again to fetch it anew",
        ) from error


def is_plain_name(name: str) -> bool:
    """Whether `name` can be one file or folder inside another folder, and nothing else."""
    return name not in ("", ".", "..") and not any(char in "/\\:" or ord(char) < 32 for char in name)


def _checked(name: str, path: Path) -> str:
    """`name` without a leading `./` if it stays inside a folder; raises GpufeedError otherwise."""
    clean = name.removeprefix("./")
    if not all(is_plain_name(part) for part in clean.split("/")):
        raise _refused(path, f"the name {name!r}, which could lead out of its folder")
    return clean


def _once(name: str, path: Path, seen: set[str]) -> None:
    if name in seen:
        raise _refused(path, f"the name {name!r} twice")
    seen.add(name)


def _refused(path: Path, what: str) -> GpufeedError:
    return GpufeedError(
        f"{path} holds {what}",
        "plain files and folders with different relative names",
        "get the archive from its publisher and check its sha256; nothing of it was used",
    )


def _zip_members(path: Path) -> Iterator[Member]:
    with zipfile.ZipFile(path) as archive:
        files, seen = [], set()
        for info in archive.infolist():  # the whole table of contents before the first file
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _refused(path, f"{info.filename!r}, a link or a device")
            name = _checked(info.filename.removesuffix("/"), path)
            if not info.is_dir():
                _once(name, path, seen)
                files.append((name, info))
        for name, info in files:
            yield Member(name, info.file_size, lambda info=info: _guarded(path, lambda: archive.read(info)))


def _tar_members(path: Path) -> Iterator[Member]:
    seen: set[str] = set()
    with tarfile.open(path) as archive:
        for info in archive:
            if not (info.isfile() or info.isdir()):
                raise _refused(path, f"{info.name!r}, a link or a device")
            if info.isdir() and info.name in (".", "./"):
                continue
            name = _checked(info.name, path)
            if info.isfile():
                _once(name, path, seen)
                yield Member(name, info.size, lambda info=info: _tar_read(path, archive, info))


def _tar_read(path: Path, archive: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    data = _guarded(path, lambda: archive.extractfile(info).read())
    with reading(path):
        if len(data) != info.size:
            raise EOFError(f"{info.name} ends after {len(data)} of {info.size} bytes")
    return data


def _guarded(path: Path, read: Callable[[], bytes]) -> bytes:
    """Damage shows only while a member is read, in the caller's hands."""
    with reading(path):
        return read()
