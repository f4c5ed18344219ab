"""No measurement outlives the workflow that started it.

SIGKILL to Snakemake does not reach its jobs. One that went on would be timed beside the next run, and
would write its record into that run's folder.
"""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

from gpufeed.system import sigterm_handler

LOOK_S = 0.5
KEEP_S = 60.0  # for a training that keeps its state at that moment: SIGTERM was for its ancestors, too
VARIABLE = "GPUFEED_SNAKEMAKE"  # in a job's environment: Snakemake's process number and its namespace


def handed_down() -> str:
    """Return the shell command by which the present process, a Snakemake, tells its jobs who it is.

    It is part of what a job's shell runs, so that it arrives within a container with a clean environment.
    """
    return f"export {VARIABLE}={os.getpid()}:{pid_namespace()}"


def pid_namespace() -> int:
    """Return the number of the namespace of this process's number; 0 where the system has none."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def family(ancestors: int = 2) -> Callable[[], bool]:
    """What says whether the nearest ancestors of this process, those of this moment, all run still.

    ancestors: how many; the two nearest of a script are the shell and Snakemake.
    """
    watched = psutil.Process().parents()[:ancestors]
    return lambda: all(map(runs, watched))


def snakemake_runs() -> Callable[[], bool]:
    """Return what says whether this job's Snakemake runs still, and the nearest ancestors of the job.

    Ends the process where Snakemake has gone already. The ancestors are others then, or a container stands
    between, so that Snakemake passes on its number (`handed_down`); a process with that number that began
    after the job is another one. In a container with its own process numbers only the ancestors can be seen.
    """
    near = family()
    pid, namespace = map(int, os.environ.get(VARIABLE, "0:-1").split(":"))
    if namespace != pid_namespace():
        return near
    try:
        snakemake = psutil.Process(pid)
        if snakemake.create_time() > psutil.Process().create_time():
            end_now()
    except psutil.NoSuchProcess:
        end_now()
    return lambda: runs(snakemake) and near()


def runs(process: psutil.Process) -> bool:
    """Whether it has not ended; one that ends between the two looks has."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end_with(ancestors: int = 2) -> None:
    """Ends this process as end_unless does, when one of its nearest ancestors (as in family) has gone."""
    end_unless(family(ancestors))


def end_unless(all_run: Callable[[], bool]) -> None:
    """Ends this process, at once and without a record, as soon as `all_run` says no.

    A process that was asked to end, and heeds that, has KEEP_S for it.
    """

    def watch() -> None:
        while all_run():
            time.sleep(LOOK_S)
        until = time.monotonic() + KEEP_S
        while sigterm_handler.given() and time.monotonic() < until:
            time.sleep(LOOK_S)
        end_now()

    threading.Thread(target=watch, name="gpufeed-orphan", daemon=True).start()


def end_now() -> None:
    """Ends this process, and asks those that it has started to end, as Slurm does: compilers watch nobody."""
    try:
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.terminate()
    finally:
        os._exit(1)
