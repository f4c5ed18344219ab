"""Locks that the kernel holds for a process and gives back when it ends, however it ends.

A file a lock, in one folder for all users of the node. What stands in a file tells who holds it, and is
left there by a holder that was killed. Source: flock(2).
"""

import fcntl
import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpufeed.core.errors import GpufeedError

VARIABLE = "GPUFEED_LEASES"  # another folder: in a container, one that all containers of the node see
FOLDER = "/tmp/gpufeed-leases"  # not TMPDIR, of which clusters give each job a new one
FOR_ALL = 0o1777  # everyone makes files there, and removes their own
MOST = 4096  # characters that a file tells

_open: set[int] = set()


@dataclass(frozen=True)
class Lock:
    """A lock that this process holds.

    number: descriptor of the open file. owner: id of the process. left: the holder before it was killed.
    """

    path: Path
    number: int
    owner: int
    left: bool

    def release(self) -> None:
        """Gives it back; nothing to do in a process that was forked from the holder."""
        if os.getpid() != self.owner:
            return
        with suppress(OSError):
            os.ftruncate(self.number, 0)
        _open.discard(self.number)
        os.close(self.number)


def folder() -> Path:
    """Where the files are, whether that exists or not."""
    return Path(os.environ.get(VARIABLE) or FOLDER)


def lock(name: str, about: Mapping[str, Any]) -> Lock | None:
    """The lock of that name, at once; None while another process holds it.

    about: what the file says of this process. Raises GpufeedError where the file cannot be used.
    """
    path = folder() / name
    try:
        while True:
            umask = os.umask(0)  # what is made here is open to all from its first moment
            try:
                prepare(path.parent)
                number = opened(path)
            finally:
                os.umask(umask)
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(number)
                return None
            if is_at(number, path):
                break
            os.close(number)  # someone removed the file in between: a lock on it would keep nobody out
    except OSError as error:
        raise GpufeedError(
            f"{path}, where the GPUs in use are marked: {error.strerror}",
            "a folder on this node's own disk in which every user may write",
            f"let its owner open it to you, or name another folder in the variable {VARIABLE}",
        ) from error
    _open.add(number)
    left = os.fstat(number).st_size > 0
    write_holder(number, about)
    return Lock(path, number, os.getpid(), left)


def holder(name: str) -> Mapping[str, Any] | None:
    """What the process that holds the lock says of itself, or nothing; None where it is free.

    Asking takes the lock for a moment, for all who ask together: who wants it then tries once more.
    """
    path = folder() / name
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return parse_holder(os.pread(number, MOST, 0))
    else:
        return None
    finally:
        os.close(number)


def parse_holder(text: bytes) -> Mapping[str, Any]:
    """What stands in a file; nothing where it is not whole."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def write_holder(number: int, about: Mapping[str, Any]) -> None:
    """Writes it into the file; one that is another user's and closed to us stays as it is."""
    with suppress(OSError):
        os.ftruncate(number, 0)
        os.pwrite(number, json.dumps(about).encode()[:MOST], 0)


def prepare(place: Path) -> None:
    """Makes the folder of the locks. Raises OSError where it cannot, or where it is no folder."""
    with suppress(FileExistsError):  # the next check says what is there
        place.mkdir(FOR_ALL, exist_ok=True)
    if not stat.S_ISDIR(place.lstat().st_mode):
        raise NotADirectoryError(20, "it is a link or a file, and no folder")


def opened(path: Path) -> int:
    """Return a descriptor of the file, which is made if need be.

    Linux refuses to open another user's file in such a folder with O_CREAT (fs.protected_regular).
    """
    while True:
        try:
            return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except PermissionError:  # it can be locked all the same
            return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            with suppress(FileExistsError):
                return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)


def is_at(number: int, path: Path) -> bool:
    """Whether the open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(number), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _let_go() -> None:
    """In a process that was forked, which must not hold what its parent has taken."""
    for number in _open:
        os.close(number)
    _open.clear()


os.register_at_fork(after_in_child=_let_go)
