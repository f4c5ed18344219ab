"""Locks that the kernel holds for a process and releases when it ends, however it ends.

Each lock is a file, all in one folder for all users of the node. The file's content describes the holder; a
killed holder leaves it there. Source: flock(2).
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

VARIABLE = "GPUFEED_LEASES"  # names another folder, such as one that all containers of a node share
FOLDER = "/tmp/gpufeed-leases"  # not TMPDIR, which clusters set for each job
FOR_ALL = 0o1777  # everyone may create files, and remove only their own
MOST = 4096  # bytes of a file that are read

_open: set[int] = set()


@dataclass(frozen=True)
class Lock:
    """A lock that this process holds.

    number: descriptor of the open file. owner: process id. left: whether the previous holder was killed.
    """

    path: Path
    number: int
    owner: int
    left: bool

    def release(self) -> None:
        """Release the lock; do nothing in a process that was forked from the holder."""
        if os.getpid() != self.owner:
            return
        with suppress(OSError):
            os.ftruncate(self.number, 0)
        _open.discard(self.number)
        os.close(self.number)


def folder() -> Path:
    """Return the folder of the lock files, whether it exists or not."""
    return Path(os.environ.get(VARIABLE) or FOLDER)


def lock(name: str, about: Mapping[str, Any]) -> Lock | None:
    """Take the lock of that name without waiting; return None if another process holds it.

    about: written into the file, to describe this process. Raises GpufeedError if the file cannot be used.
    """
    path = folder() / name
    try:
        while True:
            umask = os.umask(0)  # new files must be open to all users at once
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
            os.close(number)  # the file was removed in between: locking it would be useless
    except OSError as error:
        raise GpufeedError(
            f"{path}, where the GPUs in use are marked: {error.strerror}",
            "a folder on this node's own disk in which every user may write",
            f"ask its owner for access, or set {VARIABLE} to another folder",
        ) from error
    _open.add(number)
    left = os.fstat(number).st_size > 0
    write_holder(number, about)
    return Lock(path, number, os.getpid(), left)


def holder(name: str) -> Mapping[str, Any] | None:
    """Return what the holder of a lock wrote into its file; None if the lock is free.

    This takes a shared lock for a moment; a process that wants the lock just then tries again.
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
    """Return the content of a lock file; {} if it is incomplete."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def write_holder(number: int, about: Mapping[str, Any]) -> None:
    """Write the holder into the file; do nothing if it is another user's and read-only."""
    with suppress(OSError):
        os.ftruncate(number, 0)
        os.pwrite(number, json.dumps(about).encode()[:MOST], 0)


def prepare(place: Path) -> None:
    """Create the folder of the locks; raise OSError if that fails, or if it is no folder."""
    with suppress(FileExistsError):  # the next check reports what is there
        place.mkdir(FOR_ALL, exist_ok=True)
    if not stat.S_ISDIR(place.lstat().st_mode):
        raise NotADirectoryError(20, "it is a link or a file, and no folder")


def opened(path: Path) -> int:
    """Return a descriptor of the file, which is created if needed.

    Linux refuses O_CREAT for another user's file in such a folder (fs.protected_regular).
    """
    while True:
        try:
            return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except PermissionError:  # a read-only file can be locked too
            return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            with suppress(FileExistsError):
                return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)


def is_at(number: int, path: Path) -> bool:
    """Return whether the open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(number), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _let_go() -> None:
    """Close the locks in a forked process, which must not hold those of its parent."""
    for number in _open:
        os.close(number)
    _open.clear()


os.register_at_fork(after_in_child=_let_go)
