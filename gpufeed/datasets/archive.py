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

from gpufeed.core.errors import GpufeedError

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

ZIP_STARTS = (b"PK\3\4", b"PK\5\6")  # of a file, or of the end where there is none
IN_MEMORY = (  # headers before a member's own, with a longer name and the like: tarfile reads them whole
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
    """A member of a tar. tarfile takes a header that is damaged, cut off or missing for the archive's end."""

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
    """The regular files of a zip or tar archive (gzip, bzip2, xz or none), in the archive's order.

    most: bytes of a file that may be read; a few kilobytes of an archive can claim any number of them. Raises
    GpufeedError for a damaged archive and, instead of handing over the member, for a name that climbs out
    (absolute, `..`), a link of any kind, a device, and a name that comes twice.
    """
    for member in _entries(path):
        if not member.name.endswith("/"):
            yield Member(member.name, member.size, lambda member=member: _bounded(path, member, most))


def names(path: Path) -> list[str]:
    """The names of the regular files and, with a slash at the end, of the folders that have an entry.

    Raises GpufeedError as `members` does.
    """
    return [member.name for member in _entries(path)]


def _entries(path: Path) -> Iterator[Member]:
    """As `members`, without a bound, and with the folders that have an entry."""
    with reading(path):
        yield from _zip_entries(path) if _is_zip(path) else _tar_entries(path)


def _is_zip(path: Path) -> bool:
    """By its first bytes: zipfile also finds a zip that stands within a tar, near its end."""
    with path.open("rb") as file:
        return file.read(4) in ZIP_STARTS


def _bounded(path: Path, member: Member, most: int) -> bytes:
    """The member's content; raises GpufeedError if that is more than `most` bytes."""
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
            f"put a whole copy there, or move {path} away and run the command again, which fetches it",
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
        # without a number it would unpack more than the header says
        return _whole(file.read(info.file_size), info.filename, info.file_size)


def _tar_entries(path: Path) -> Iterator[Member]:
    seen: set[str] = set()
    with tarfile.open(path, tarinfo=Header) as archive:
        for info in archive:
            archive.members.clear()  # it would keep a kilobyte for each
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
        while rest := archive.fileobj.read(CHUNK):  # to the end: of what is compressed, the checksum is there
            if rest.count(0) != len(rest):
                raise tarfile.ReadError("something follows its end mark")


def _tar_read(path: Path, archive: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    with reading(path):
        return _whole(archive.extractfile(info).read(), info.name, info.size)


def _whole(data: bytes, name: str, size: int) -> bytes:
    if len(data) != size:
        raise EOFError(f"{name} ends after {len(data)} of {size} bytes")
    return data
