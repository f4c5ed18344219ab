"""Files that are written whole or not at all, their sha256, and errors of a full disk as a sentence."""

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
NO_ENTRY = {errno.EROFS, errno.EACCES, errno.EPERM}  # a disk or a folder that may not be written to
PROBE = 2**16  # bytes: more than the part of a block that a full disk may have left
PIECE = 2**24  # bytes that are read at a time for a digest


def refusal(error: OSError, folder: str | Path) -> GpufeedError | None:
    """The error for a disk that is full or may not be written to; None for another one.

    folder: where the disk is, if the system's error does not name what was being written.
    """
    if error.errno in NO_ROOM:
        return GpufeedError(
            f"no room to write in {folder} ({error.strerror})",
            "a disk (and quota) with room for all that is written there",
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
    """Turns the error of a full disk inside the block into a GpufeedError that names `folder`.

    file: what the block writes there. A library may hide the system's error, as torch does: it is asked for.
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
        if error.errno not in NO_ROOM | {errno.EROFS}:  # no access may be to what is read
            raise
        raise refusal(error, folder) from error


def own_partial(path: Path) -> Path:
    """A name beside `path` for what shall become it, which nobody else writes to.

    It names the node, since there are file systems whose locks hold on one node only.
    """
    return path.with_name(f"{path.name}.{platform.node()}-{uuid.uuid4().hex[:8]}.partial")


@contextmanager
def whole(path: str | Path, shared: bool = False, durable: bool = False) -> Iterator[Path]:
    """Yields the name of a file beside `path`, which has that name after the block, and goes where it raises.

    Makes the folder. shared: several processes may write `path` at once, each under a name of its own.
    durable: waits until the disk has the file, so that no crash of the node leaves a part of it. A disk that
    is full or read-only is a GpufeedError.
    """
    path = Path(path)
    partial = own_partial(path) if shared else path.with_name(path.name + ".partial")
    try:
        with enough_disk(path.parent, partial):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield partial
            if durable:
                with partial.open("r+b") as file:  # whichever process wrote to it
                    os.fsync(file.fileno())
            os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def write_whole(path: str | Path, text: str, shared: bool = False) -> None:
    """Writes `text` (UTF-8) beside `path` and renames it, so that a killed job leaves no half file."""
    with whole(path, shared) as partial:
        partial.write_text(text, encoding="utf-8")


def sha256_of(path: Path, alive: Callable[[], None] = lambda: None) -> str:
    """Return the sha256 of a file in hex, as sha256sum gives it; alive is called for each PIECE of it."""
    found, piece = hashlib.sha256(), memoryview(bytearray(PIECE))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(piece):
            found.update(piece[:count])
            alive()
    return found.hexdigest()
