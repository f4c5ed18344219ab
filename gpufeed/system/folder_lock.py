"""Removes the lock that a killed Snakemake left in the folder of a run.

Snakemake's lock does not say whose it is. A run records that beside its lock. The next one removes the lock
if that process is surely gone: it ran under this boot of this machine, and its id is free or another's. What
cannot be told leaves the lock, until --unlock.
"""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpufeed.core.file_writes import write_whole
from gpufeed.system.parent_watchdog import pid_namespace

OWNER = Path(".snakemake/gpufeed_lock.json")
BOOT = Path("/proc/sys/kernel/random/boot_id")


def record(files: Iterable[str | Path], jobs_end_with_it: bool) -> None:
    """Record that this process holds these lock files.

    jobs_end_with_it: whether its jobs end when it is killed. Those that were submitted still write: there is
    then no record.
    """
    with suppress(OSError):
        if jobs_end_with_it:
            owner = {"place": place(), "pid": os.getpid(), "began": state_and_start("self")[1]}
            write_whole(OWNER, json.dumps(owner | {"files": {str(path): stamp(path) for path in files}}))
        else:
            OWNER.unlink()


def remove_stale() -> None:
    """Remove the lock files on record if the process that wrote them is surely gone."""
    with suppress(Exception):  # whatever the record holds, the Snakefile must be read
        owner = json.loads(OWNER.read_text())
        if owner["place"] != place() or may_run(owner["pid"], owner["began"]):
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
    """Return device, inode and time of change: they differ for a later file of the same name."""
    found = os.stat(path)
    return [found.st_dev, found.st_ino, found.st_mtime_ns]


def may_run(pid: int, began: int) -> bool:
    """Return whether the process may still run, and not another one with its id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    try:
        state, start = state_and_start(pid)
    except OSError:  # /proc may hide another user's
        return True
    return start == began and state not in ("Z", "X")  # a zombie writes no more


def state_and_start(pid: int | str) -> tuple[str, int]:
    """Return a process's state, and when it began, in clock ticks since the boot.

    Raises OSError where /proc does not tell. psutil adds the time of the boot, which moves with the clock.
    """
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return fields[0], int(fields[19])  # fields 3 and 22; the second, a name, may hold blanks
