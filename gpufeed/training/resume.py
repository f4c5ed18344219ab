"""A job whose training goes on at the step where it was, when it was killed or asked to end."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpufeed.system import sigterm_handler
from gpufeed.training.checkpoints import CHECKPOINT_STEPS, Checkpoints


@contextmanager
def resumable(folder: str | Path, *owner: str) -> Iterator[Checkpoints]:
    """Within it the job trains and writes what it makes; `over` then removes its checkpoints.

    folder: of these checkpoints; below none of the job's outputs, which Snakemake deletes before it starts
    a job again. owner: what training it is, in any words, the digest of its code among them. Where the
    training is asked to end, Slurm is asked to start the job again.
    """
    checkpoints = Checkpoints(Path(folder), CHECKPOINT_STEPS, ", ".join(owner))
    with sigterm_handler.requeue_when_ended():
        yield checkpoints


def over(checkpoints: Checkpoints, status: str) -> None:
    """Removes the checkpoints of a training that is `done`; one that was skipped or failed is tried again."""
    if status == "done":
        checkpoints.remove()
        with suppress(OSError):  # it may hold what was made
            checkpoints.folder.rmdir()
