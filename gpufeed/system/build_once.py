"""Builds of files that several processes may want at once: one process builds, the others wait."""

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

STALE_S = 86_400  # age at which a partial file of another node counts as abandoned

log = logging.getLogger("gpufeed")
held = threading.local()  # .paths: what this thread is building


@contextmanager
def one_builder(path: Path) -> Iterator[bool]:
    """Let one process or thread at a time build `path`, and create its folder; the others wait.

    Yields whether this one had to wait, after which the file may exist. A thread may nest calls for the same
    path. The lock is flock's, on an empty file that is never removed, since a new file would be another lock.
    It is released when the process ends, however that ends. A file system without locks is logged: two
    processes may then build at once, each into its own partial file.
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
            fcntl.flock(lock, fcntl.LOCK_UN)  # explicit: a process forked meanwhile has the file open
        os.close(lock)


def open_lock(file: Path) -> int:
    """Open the lock file, for writing if allowed, since NFS locks no file that is read-only."""
    try:
        return os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:
        if not file.exists():
            raise
        return os.open(file, os.O_RDONLY)  # of another user


def take(lock: int, path: Path) -> bool:
    """Lock a descriptor, and remove files that killed builders left; return whether it waited."""
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
    """Yield an empty folder beside `path`, removed afterwards; other processes that ask for `path` wait.

    What a killed process left is removed, too.
    """
    with one_builder(path):
        folder = own_partial(path)
        try:
            folder.mkdir()
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
