"""SIGTERM as notice: a process that handles it saves its state before it ends, and asks Slurm for a requeue.

Slurm sends it some time before it kills: at a preemption, a time limit, a requeue; so does
`scancel --signal=TERM`. A process that does not handle it is ended by it at once. Slurm starts a job again
where its site and its submitter allow that.
"""

import logging
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger("gpufeed")
STATUS = 128 + signal.SIGTERM  # what shells say of a process that SIGTERM ended
SCONTROL_S = 10
OF_SNAKEMAKE = " Comment=rule_"  # of the jobs that Snakemake submits, a rule each


class Ended(SystemExit):
    """The work was asked to end, and has kept its state; no error of the work."""

    def __init__(self) -> None:
        super().__init__(STATUS)


class _Notice:
    """Of this process. Plain values: a lock would wait for itself in a handler that interrupts itself."""

    heeded = given = False

    def hear(self, number: int, frame: object) -> None:
        self.given = True


_notice = _Notice()


def given() -> bool:
    """Whether this process has to end soon; false where nobody heeds it."""
    return _notice.given


@contextmanager
def heeded() -> Iterator[None]:
    """Within it SIGTERM is written down, for who asks `given`, however often it comes.

    Where Ended leaves the block that lasts to the end of the process, since Slurm may send it twice, to a
    process and through srun. What fails while the process has to end fails by that, as a loader whose helpers
    were ended with it: it raises Ended instead. Outside of the main thread, which alone hears signals, it
    changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _notice.hear)
    _notice.heeded = True
    ends = False
    try:
        yield
    except Ended:
        ends = True
        raise
    except Exception as error:
        if not given():
            raise
        ends = True
        log.warning("asked to end, and stopped by %s: %s", type(error).__name__, error)
        raise Ended from error
    finally:
        if not ends:
            signal.signal(signal.SIGTERM, before)
            _notice.heeded = _notice.given = False


def left_to_parent(number: int) -> None:
    """For a helper process, as its first act: where its parent heeds SIGTERM the parent ends it.

    Slurm and shells send it to all processes of a job at once. number: of the helper, not used.
    """
    if _notice.heeded:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def requeue() -> None:
    """Ask Slurm to start this job again; leave it, with a line in the log, where that is not to be.

    Only a job that Snakemake submitted: of an allocation that somebody works in this is one process of many.
    Only one that still counts as running: one that was cancelled stays so, and one at its time limit is
    submitted again by Snakemake (`retries`), with more time. A job may be requeued by sbatch --requeue, which
    the profile's `slurm-requeue` says.
    """
    job = os.environ.get("SLURM_JOB_ID", "")
    if not job or not shutil.which("scontrol"):
        return
    about = f"{scontrol('-o', 'show', 'job', job)} "
    for needed in (" JobState=RUNNING ", " Requeue=1 ", OF_SNAKEMAKE):
        if needed not in about:
            log.info("job %s is not requeued: %s", job, f"it has not{needed.rstrip()}")
            return
    if scontrol("requeue", job) is not None:
        log.info("job %s is requeued", job)


def scontrol(*words: str) -> str | None:
    """What scontrol prints; None, with a warning, where it fails."""
    try:
        done = subprocess.run(["scontrol", *words], capture_output=True, text=True, timeout=SCONTROL_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("scontrol %s: %s", " ".join(words), error)
        return None
    if done.returncode:
        log.warning("scontrol %s: %s", " ".join(words), done.stderr.strip())
        return None
    return done.stdout
