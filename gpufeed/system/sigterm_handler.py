"""Handles SIGTERM: the process saves its state before it ends, and asks Slurm for a requeue.

Slurm sends SIGTERM some time before it kills: at a preemption, a time limit, a requeue; so does `scancel
--signal=TERM`. Without a handler it ends a process at once. Slurm starts a job again if its site and its
submitter allow that.
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
STATUS = 128 + signal.SIGTERM  # exit status of a process that SIGTERM ended, as in shells
SCONTROL_S = 10
OF_SNAKEMAKE = " Comment=rule_"  # in the description of jobs that Snakemake submits


class Ended(SystemExit):
    """The work was asked to end, and has saved its state; not an error."""

    def __init__(self) -> None:
        super().__init__(STATUS)


class _State:
    """The state of this process. Plain values: a handler that interrupts itself could not take a lock."""

    handled = received = False

    def receive(self, number: int, frame: object) -> None:
        self.received = True


_state = _State()


def received() -> bool:
    """Return whether SIGTERM has arrived, so that this process must end soon; False without a handler."""
    return _state.received


@contextmanager
def handling() -> Iterator[None]:
    """Record SIGTERM inside the block instead of ending, for callers of `received`.

    If Ended leaves the block, SIGTERM stays recorded until the process ends, since Slurm may send it twice,
    to a process and through srun. An error after SIGTERM, such as that of a loader whose workers were ended
    too, becomes Ended. Only the main thread gets signals; in other threads this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _state.receive)
    _state.handled = True
    ends = False
    try:
        yield
    except Ended:
        ends = True
        raise
    except Exception as error:
        if not received():
            raise
        ends = True
        log.warning("asked to end, and stopped by %s: %s", type(error).__name__, error)
        raise Ended from error
    finally:
        if not ends:
            signal.signal(signal.SIGTERM, before)
            _state.handled = _state.received = False


def left_to_parent(number: int) -> None:
    """Ignore SIGTERM in a helper process whose parent handles it and will end the helper.

    Slurm and shells send it to all processes of a job at once. number: of the helper, unused.
    """
    if _state.handled:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def requeue() -> None:
    """Ask Slurm to start this job again; log the reason if it may not be.

    Only jobs that Snakemake submitted are requeued, not an allocation in which somebody works. The job must
    still be running. A cancelled one stays cancelled, and one at its time limit is submitted again by
    Snakemake (`retries`) with more time. Slurm allows it with sbatch --requeue, which `slurm-requeue` in the
    profile sets.
    """
    job = os.environ.get("SLURM_JOB_ID", "")
    if not job or not shutil.which("scontrol"):
        return
    about = f"{scontrol('-o', 'show', 'job', job)} "
    for needed in (" JobState=RUNNING ", " Requeue=1 ", OF_SNAKEMAKE):
        if needed not in about:
            log.info("job %s is not requeued, since it lacks%s", job, needed.rstrip())
            return
    if scontrol("requeue", job) is not None:
        log.info("job %s is requeued", job)


def scontrol(*words: str) -> str | None:
    """Return the output of scontrol; None, with a warning, if it fails."""
    try:
        done = subprocess.run(["scontrol", *words], capture_output=True, text=True, timeout=SCONTROL_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("scontrol %s: %s", " ".join(words), error)
        return None
    if done.returncode:
        log.warning("scontrol %s: %s", " ".join(words), done.stderr.strip())
        return None
    return done.stdout
