"""Read zip and tar archives that may be damaged or hostile.

Members are yielded as names and bytes; the caller decides where they go. A name that could lead out of the
target folder is refused.
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

from gpufeed.core.errors import GpufeedError

DAMAGE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    RuntimeError,  # zipfile: encrypted member, unknown compression
    UnicodeDecodeError,
    ValueError,  # zipfile, tarfile: impossible numbers in a header
)

ZIP_STARTS = (b"PK\3\4", b"PK\5\6")  # of the first file; of the end record if the archive is empty
IN_MEMORY = (  # extension headers, such as long names, which tarfile reads into memory whole
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
MOST_NAME = 2**20  # bytes of such a header
CHUNK = 2**20


@dataclass(frozen=True)
class Member:
    """A regular file of an archive: its path with forward slashes, its size in bytes, its content.

    `read` works only until the iteration moves on.
    """

    name: str
    size: int
    read: Callable[[], bytes]


class Header(tarfile.TarInfo):
    """A tar member. A damaged, cut-off or missing header is an error; to tarfile it is the archive's end."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> "Header":
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # a block of zeros, which is the end
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"{error} at byte {archive.offset}") from error

    @classmethod
    def frombuf(cls, *block) -> "Header":
        header = super().frombuf(*block)
        if header.type in IN_MEMORY and header.size > MOST_NAME:
            raise tarfile.ReadError(f"a name of {header.size} bytes")
        return header


def members(path: Path, most: int) -> Iterator[Member]:
    """Yield the regular files of a zip or tar archive (gzip, bzip2, xz or none), in the archive's order.

    most: bytes that a file may unpack to; a few kilobytes of archive can expand to any size. Raises
    GpufeedError for a damaged archive, a name that leads out of the folder (absolute, `..`), a link of any
    kind, a device, and a repeated name.
    """
    for member in _entries(path):
        if not member.name.endswith("/"):
            yield Member(member.name, member.size, lambda member=member: _bounded(path, member, most))


def names(path: Path) -> list[str]:
    """Return the names of the regular files and, with a slash at the end, of the folders that have an entry.

    Raises GpufeedError as `members` does.
    """
    return [member.name for member in _entries(path)]


def _entries(path: Path) -> Iterator[Member]:
    """Yield what `members` does, without a bound on size, and the folders that have an entry."""
    with reading(path):
        yield from _zip_entries(path) if _is_zip(path) else _tar_entries(path)


def _is_zip(path: Path) -> bool:
    """Return whether the first bytes are a zip's; zipfile itself also accepts a tar that ends in a zip."""
    with path.open("rb") as file:
        return file.read(4) in ZIP_STARTS


def _bounded(path: Path, member: Member, most: int) -> bytes:
    """Return the member's content; raise GpufeedError if that is more than `most` bytes."""
    if member.size > most:
        raise GpufeedError(
            f"{member.name!r}, {member.size:,} bytes, in {path}",
            f"at most {most:,} bytes a file in this layout",
            "take the file out of the archive if that is yours, or get it from its publisher and check its "
            "sha256; nothing of it was used",
        )
    return member.read()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn the errors that zipfile and tarfile raise for a damaged file into a GpufeedError."""
    try:
        yield
    except FileNotFoundError as error:
        raise GpufeedError(f"no file {path}", "the dataset's archive", "run the download again") from error
    except (*DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's errors, not the archive's
            raise
        raise GpufeedError(
            f"{path} is no archive, or damaged or cut off ({type(error).__name__}: {error})",
            "a complete archive",
            f"put a complete copy there; if gpufeed downloaded it, move {path} away and run the command "
            "again",
        ) from error


def is_plain_name(name: str) -> bool:
    """Return whether `name` can be one file or folder inside another folder, and nothing else."""
    return name not in ("", ".", "..") and not any(char in "/\\:" or ord(char) < 32 for char in name)


def _checked(name: str, path: Path) -> str:
    """Return `name` without a leading `./`; raise GpufeedError if it leads out of a folder."""
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


def _zip_entries(path: Path) -> Iterator[Member]:
    with zipfile.ZipFile(path) as archive:
        files, seen = [], set()
        for info in archive.infolist():  # the whole table of contents before the first file
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _refused(path, f"{info.filename!r}, a link or a device")
            name = _checked(info.filename.removesuffix("/"), path)
            if info.is_dir():
                files.append((f"{name}/", info))
                continue
            _once(name, path, seen)
            files.append((name, info))
        for name, info in files:
            yield Member(name, info.file_size, lambda info=info: _zip_read(path, archive, info))


def _zip_read(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    # damage shows only while a member is read, in the caller's hands
    with reading(path), archive.open(info) as file:
        # without a bound it could unpack more than the header says
        return _whole(file.read(info.file_size), info.filename, info.file_size)


def _tar_entries(path: Path) -> Iterator[Member]:
    seen: set[str] = set()
    with tarfile.open(path, tarinfo=Header) as archive:
        for info in archive:
            archive.members.clear()  # tarfile would keep about 1 KB a member
            if not (info.isfile() or info.isdir()):
                raise _refused(path, f"{info.name!r}, a link or a device")
            if info.isdir() and info.name in (".", "./"):
                continue
            name = _checked(info.name, path)
            if info.isdir():
                yield Member(f"{name}/", 0, bytes)
                continue
            _once(name, path, seen)
            yield Member(name, info.size, lambda info=info: _tar_read(path, archive, info))
        while rest := archive.fileobj.read(CHUNK):  # up to the checksum at the end of a compressed archive
            if rest.count(0) != len(rest):
                raise tarfile.ReadError("it has data after its end mark")


def _tar_read(path: Path, archive: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    with reading(path):
        return _whole(archive.extractfile(info).read(), info.name, info.size)


def _whole(data: bytes, name: str, size: int) -> bytes:
    if len(data) != size:
        raise EOFError(f"{name} ends after {len(data)} of {size} bytes")
    return data
