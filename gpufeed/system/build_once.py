"""Files that several processes may want to build at once: one builds, each writes into a file of its own."""

import fcntl
import glob
import logging
import os
import platform
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpufeed.core.file_writes import own_partial

STALE_S = 86_400  # a partial file of another node that nobody has written to for so long has no owner

log = logging.getLogger("gpufeed")
held = threading.local()  # .paths: what this thread builds at this moment


@contextmanager
def one_builder(path: Path) -> Iterator[bool]:
    """Within it no other process or thread that asks for `path` builds it; they wait. Creates its folder.

    Yields whether this one had to wait: what it wanted may be there now. A thread may ask again within.
    The lock is flock's, on an empty file that stays, since a new one in its place would be another lock; it
    ends with the process, however that ends. A file system without locks is logged: two processes
    may then build at once, each into its own partial file.
    """
    paths = vars(held).setdefault("paths", set())
    key = path.absolute()
    if key in paths:
        yield False
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = open_lock(path.with_name(f".{path.name}.lock"))
    paths.add(key)
    try:
        waited = take(lock, path)
        yield waited
    finally:
        paths.discard(key)
        with suppress(OSError):  # no locks here
            fcntl.flock(lock, fcntl.LOCK_UN)  # a process forked meanwhile has the file open, too
        os.close(lock)


def open_lock(file: Path) -> int:
    """A descriptor of the lock's file, for writing where that is allowed, since NFS locks no other."""
    try:
        return os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:
        if not file.exists():
            raise
        return os.open(file, os.O_RDONLY)  # made by another user of this folder


def take(lock: int, path: Path) -> bool:
    """Takes the lock, a descriptor, and clears away what killed builders left; returns whether it waited."""
    waited = False
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("%s is being built by another process; this one waits for it", path)
            waited = True
            fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError as error:
        log.warning(
            "the file system of %s has no locks (%s): do not build it by two processes at once",
            path,
            error.strerror,
        )
        return False
    for left in path.parent.glob(f"{glob.escape(path.name)}.*partial"):
        with suppress(FileNotFoundError):
            if f".{platform.node()}-" in left.name or time.time() - left.stat().st_mtime > STALE_S:
                shutil.rmtree(left) if left.is_dir() else left.unlink()
    return waited


@contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """An empty folder beside `path`, of which nothing is left; another process that asks for `path` waits.

    What a killed process left goes, too.
    """
    with one_builder(path):
        folder = own_partial(path)
        try:
            folder.mkdir()
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
