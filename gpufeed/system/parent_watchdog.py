"""Ends a job when the workflow that started it has ended.

SIGKILL to Snakemake does not reach its jobs. A surviving job would disturb the next run, and would write its
record into that run's folder.
"""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

from gpufeed.system import sigterm_handler

LOOK_S = 0.5
KEEP_S = 60.0  # for a training to save its state, if SIGTERM was sent to it and its ancestors
VARIABLE = "GPUFEED_SNAKEMAKE"  # in a job's environment: Snakemake's process id and its namespace


def handed_down() -> str:
    """Return the shell command by which this process, a Snakemake, passes its process id to its jobs.

    It is part of each job's shell command, so that it also works in a container with a clean environment.
    """
    return f"export {VARIABLE}={os.getpid()}:{pid_namespace()}"


def pid_namespace() -> int:
    """Return the PID namespace of this process; 0 if the system has none."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def family(ancestors: int = 2) -> Callable[[], bool]:
    """Return a function that says whether the nearest ancestors of this process all still run.

    ancestors: how many; the two nearest of a script are the shell and Snakemake.
    """
    watched = psutil.Process().parents()[:ancestors]
    return lambda: all(map(runs, watched))


def snakemake_runs() -> Callable[[], bool]:
    """Return a function that says whether this job's Snakemake and nearest ancestors still run.

    Ends the process if Snakemake has ended already. Its ancestors are then others, or a container is in
    between, so Snakemake passes on its process id (`handed_down`). A process with that id that began after
    the job is another one. In a container with its own PID namespace only the ancestors are visible.
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
    """Return whether a process is still running."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end_with(ancestors: int = 2) -> None:
    """End this process as end_unless does, once one of its nearest ancestors (see family) has ended."""
    end_unless(family(ancestors))


def end_unless(all_run: Callable[[], bool]) -> None:
    """End this process at once, without a record, as soon as `all_run` returns false.

    A process that is already handling SIGTERM gets KEEP_S first.
    """

    def watch() -> None:
        while all_run():
            time.sleep(LOOK_S)
        until = time.monotonic() + KEEP_S
        while sigterm_handler.received() and time.monotonic() < until:
            time.sleep(LOOK_S)
        end_now()

    threading.Thread(target=watch, name="gpufeed-parent-watchdog", daemon=True).start()


def end_now() -> None:
    """End this process, and send SIGTERM to its children, such as compilers, which watch no parent."""
    try:
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.terminate()
    finally:
        os._exit(1)
