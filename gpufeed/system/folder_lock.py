"""Removes the lock that a killed Snakemake left in the folder of a run.

Snakemake's lock does not say whose it is. A run records that beside its lock. The next one removes the lock
if that process is surely gone: it ran under this boot of this machine, and its id is free or another's.
"""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from gpufeed.core.file_writes import write_whole
from gpufeed.system.parent_watchdog import pid_namespace

OWNER = Path(".snakemake/gpufeed_lock.json")
BOOT = Path("/proc/sys/kernel/random/boot_id")
APART_S = 60.0  # start times of two processes that had one id; clocks that are set move them by less


def record(files: Iterable[str | Path]) -> None:
    """Record that this process holds these lock files."""
    with suppress(OSError):  # the lock then stays until --unlock
        owner = {"place": place(), "pid": os.getpid(), "began_s": psutil.Process().create_time()}
        write_whole(OWNER, json.dumps(owner | {"files": {str(path): stamp(path) for path in files}}))


def remove_stale() -> None:
    """Remove the lock files on record if the process that wrote them is surely gone."""
    with suppress(OSError, ValueError, KeyError):
        owner = json.loads(OWNER.read_text())
        if owner["place"] != place() or may_run(owner["pid"], owner["began_s"]):
            return
        for path, written in owner["files"].items():
            with suppress(FileNotFoundError):
                if stamp(path) == written:
                    os.unlink(path)
        OWNER.unlink()


def place() -> list[Any]:
    """Return what a process id belongs to; raise OSError where that is unknown."""
    return [BOOT.read_text().strip(), pid_namespace()]


def stamp(path: str | Path) -> list[int]:
    """Return what tells a file from a later one of its name."""
    found = os.stat(path)
    return [found.st_dev, found.st_ino, found.st_mtime_ns]


def may_run(pid: int, began_s: float) -> bool:
    """Return whether the process may still run, and not another one with its id."""
    try:
        return abs(psutil.Process(pid).create_time() - began_s) < APART_S
    except psutil.NoSuchProcess:
        return False
