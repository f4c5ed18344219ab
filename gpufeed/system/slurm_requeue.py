"""A Slurm job that was asked to end asks to be started again, where its site and its submitter allow that."""

import logging
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from gpufeed.system import sigterm_handler

log = logging.getLogger("gpufeed")
ANSWER_S = 10
OURS = " Comment=rule_"  # of the jobs that Snakemake submits, a rule each


@contextmanager
def when_ended() -> Iterator[None]:
    """Asks for it where the block ends by notice.Ended, which goes on its way."""
    try:
        yield
    except sigterm_handler.Ended:
        ask()
        raise


def ask() -> bool:
    """Asks Slurm to start this job again; False, with a line in the log, where that is not to be.

    Only a job that Snakemake submitted: of an allocation that somebody works in this is one process of many.
    Only one that still counts as running: one that was cancelled stays so, and one at its time limit is
    submitted again by Snakemake (`retries`), with more time. A job may be requeued by sbatch --requeue, which
    the profile's `slurm-requeue` says.
    """
    job = os.environ.get("SLURM_JOB_ID", "")
    if not job or not shutil.which("scontrol"):
        return False
    about = f"{said('-o', 'show', 'job', job)} "
    for needed in (" JobState=RUNNING ", " Requeue=1 ", OURS):
        if needed not in about:
            log.info("job %s is not requeued: %s", job, f"it has not{needed.rstrip()}")
            return False
    if said("requeue", job) is None:
        return False
    log.info("job %s is requeued", job)
    return True


def said(*words: str) -> str | None:
    """What scontrol prints; None, with a warning, where it fails."""
    try:
        done = subprocess.run(["scontrol", *words], capture_output=True, text=True, timeout=ANSWER_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("scontrol %s: %s", " ".join(words), error)
        return None
    if done.returncode:
        log.warning("scontrol %s: %s", " ".join(words), done.stderr.strip())
        return None
    return done.stdout
