"""Atomic file writes, sha256 of files, and errors of a full disk as sentences."""

import errno
import hashlib
import os
import platform
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpufeed.core.errors import GpufeedError

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # full disk, quota reached, file size limit
NO_ENTRY = {errno.EROFS, errno.EACCES, errno.EPERM}  # read-only disk, or no permission
PROBE = 2**16  # bytes: more than a partly filled block of a full disk may take
PIECE = 2**24  # bytes read at a time for a digest


def refusal(error: OSError, folder: str | Path) -> GpufeedError | None:
    """Return the error for a full or read-only disk; None for any other OSError.

    folder: on that disk, if the error names no file.
    """
    if error.errno in NO_ROOM:
        return GpufeedError(
            f"no room to write in {folder} ({error.strerror})",
            "a disk (and quota) with enough room",
            "free some space or name a folder on a larger disk (--config results=FOLDER, data=FOLDER; TMPDIR "
            "names the temporary one), then run the command again",
        )
    if error.errno in NO_ENTRY:
        return GpufeedError(
            f"{error.filename or folder}: {error.strerror}",
            "files that you may read, in folders that you may write to",
            "ask for access, or name another folder (--config results=FOLDER, data=FOLDER), then run the "
            "command again",
        )
    return None


@contextmanager
def enough_disk(folder: Path, file: Path | None = None) -> Iterator[None]:
    """Turn the error of a full disk inside the block into a GpufeedError that names `folder`.

    file: written by the block. A library such as torch may hide the system's error; writing to the file finds
    it.
    """
    try:
        try:
            yield
        except RuntimeError:
            if file is not None:
                with file.open("ab") as more:
                    more.write(bytes(PROBE))
            raise
    except OSError as error:
        if error.errno not in NO_ROOM | {errno.EROFS}:  # EACCES may come from a file that is read
            raise
        raise refusal(error, folder) from error


def own_partial(path: Path) -> Path:
    """Return a unique name beside `path` for a file that will be renamed to it.

    The name contains the node, since locks of some file systems do not reach other nodes.
    """
    return path.with_name(f"{path.name}.{platform.node()}-{uuid.uuid4().hex[:8]}.partial")


@contextmanager
def whole(path: str | Path, shared: bool = False, durable: bool = False) -> Iterator[Path]:
    """Yield the name of a temporary file beside `path`; rename it to `path` after the block.

    The folder is created, and the file is removed if the block raises. shared: several processes may write
    `path` at once, each to its own file. durable: wait until the file is on the disk, for crashes of the
    node. Raises GpufeedError for a full or read-only disk, and for a folder, device or pipe, which the file
    would replace.
    """
    path = Path(path)
    if path.exists() and (not path.is_file() or path.parent == Path("/dev")):  # /dev/stdout may be a file
        raise GpufeedError(f"{path}, which is no regular file", "a file to write", "name another file")
    partial = own_partial(path) if shared else path.with_name(path.name + ".partial")
    try:
        with enough_disk(path.parent, partial):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield partial
            if durable:
                with partial.open("r+b") as file:  # another process may have written it
                    os.fsync(file.fileno())
            os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def write_whole(path: str | Path, text: str, shared: bool = False) -> None:
    """Write `text` (UTF-8) to `path`, whole or not at all."""
    with whole(path, shared) as partial:
        partial.write_text(text, encoding="utf-8")


def write_named(path: Path, text: str, option: str) -> None:
    """Write the file that a command's option names; raise an error with that option where it cannot be."""
    try:
        write_whole(path, text)
    except (OSError, GpufeedError) as error:
        refused = isinstance(error, GpufeedError)
        found = error.found if refused else f"{path} cannot be written: {error.strerror}"
        wanted = "a file in a folder that you may write to, on a disk with room"
        raise GpufeedError(found, wanted, f"name another with {option}") from error


def sha256_of(path: Path, alive: Callable[[], None] = lambda: None) -> str:
    """Return the sha256 of a file in hex, as sha256sum does; `alive` is called for each PIECE."""
    found, piece = hashlib.sha256(), memoryview(bytearray(PIECE))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(piece):
            found.update(piece[:count])
            alive()
    return found.hexdigest()
