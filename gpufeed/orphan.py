"""No measurement outlives the workflow that started it.

SIGKILL to Snakemake does not reach its jobs. One that went on would be timed beside the next run, and
would write its record into that run's folder.
"""

import os
import threading
import time
from collections.abc import Callable

import psutil

from gpufeed import notice

LOOK_S = 0.5
KEEP_S = 60.0  # for a training that keeps its state at that moment: SIGTERM was for its ancestors, too


def family(ancestors: int = 2) -> Callable[[], bool]:
    """What says whether the nearest ancestors of this process, those of this moment, all run still.

    ancestors: how many; the two nearest of a script are the shell and Snakemake.
    """
    watched = psutil.Process().parents()[:ancestors]
    return lambda: all(map(runs, watched))


def runs(process: psutil.Process) -> bool:
    """Whether it has not ended; one that ends between the two looks has."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end_with(ancestors: int = 2) -> None:
    """Ends this process, at once and without a record, when one of its nearest ancestors has gone.

    ancestors: as in family. A process that was asked to end, and heeds that, has KEEP_S for it.
    """
    all_run = family(ancestors)

    def watch() -> None:
        while all_run():
            time.sleep(LOOK_S)
        until = time.monotonic() + KEEP_S
        while notice.given() and time.monotonic() < until:
            time.sleep(LOOK_S)
        os._exit(1)

    threading.Thread(target=watch, name="gpufeed-orphan", daemon=True).start()
