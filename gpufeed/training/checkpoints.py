"""Resume a training that was killed, from its state on disk, which is written every so many steps.

The state holds the weights, the optimiser, the gradient scaler, the random states of host and device, and the
rows and epochs so far. It also names the next batch of every rank's loader. The final weights are those of an
uninterrupted training, bit by bit. With three ranks or more they are so up to rounding: after its first step
DDP changes the layout of its gradients, and so the order of their sums. The times of a resumed training come
from several processes and are no measurement.

At SIGTERM a training writes its state after the current step and ends. Several processes end after a step on
which all agree.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch
from torch import nn

from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import whole
from gpufeed.loaders.base import Loader
from gpufeed.system import sigterm_handler

log = logging.getLogger("gpufeed")
CHECKPOINT = "checkpoint.pt"
CHECKPOINT_STEPS = 200  # between checkpoints by default: seconds to minutes of training
FORMAT = "gpufeed checkpoint 1"
KEY = "gpufeed"  # of our part in the file, beside the trainer's own
START_AGAIN = "resume from the folder of another run, or leave resume out to train from the start"


class Training(Protocol):
    """The parts of a TrainJob that a checkpoint reads."""

    model: nn.Module
    loader: Loader
    options: Mapping[str, Any]
    precision: str
    checkpoints: "Checkpoints | None"

    def total_steps(self) -> int: ...


@dataclass(frozen=True)
class Checkpoints:
    """Where the state of a training is kept, and every how many steps it is written.

    owner: any text that identifies the training; a file of another owner is not resumed. required: whether
    the user asked to resume, so that a file that cannot be resumed is an error.
    """

    folder: Path
    every: int
    owner: str = ""
    required: bool = False

    @property
    def path(self) -> Path:
        """The file, which holds the last complete state."""
        return Path(self.folder) / CHECKPOINT

    def due(self, step: int, asked: bool) -> bool:
        """Return whether to write the state after so many steps. asked: whether the training has to end."""
        return step > 0 and (step % self.every == 0 or asked)

    def write(self, save: Callable[[Path], None]) -> None:
        """Replace the file by what `save` writes, whole or not at all, even if power fails."""
        with whole(self.path) as partial:
            save(partial)
            with partial.open("rb") as file:
                os.fsync(file.fileno())

    def end(self, step: int) -> NoReturn:
        """Raise sigterm_handler.Ended; the state after so many steps is already written."""
        log.info("asked to end: the state after step %d is kept in %s", step, self.path)
        raise sigterm_handler.Ended

    def about(self, job: Training) -> dict[str, Any]:
        """Return the fields that a file must have to belong to this training."""
        request, weights = job.loader.request, job.model.state_dict()
        shapes = [(name, list(tensor.shape), str(tensor.dtype)) for name, tensor in weights.items()]
        return {
            "owner": self.owner,
            "model": hashlib.sha256(json.dumps(shapes).encode()).hexdigest(),
            "options": json.dumps(dict(job.options), sort_keys=True),
            "precision": job.precision,
            "steps": job.total_steps(),
            "images": len(job.loader.split_ids),
            **{name: getattr(request, name) for name in ("seed", "batch_size", "world_size")},
        }

    def read(self, trainer: str, job: Training) -> dict[str, Any] | None:
        """Return the state that `trainer` wrote for this training, on the CPU; None if there is none.

        A file that is damaged or of another training is ignored with a warning, or raises GpufeedError if it
        is required.
        """
        if not self.path.exists() and not self.required:
            return None
        try:
            state = load(self.path)
            check_stamp(self.path, state[KEY]["about"], stamp(trainer, self.about(job)))
        except GpufeedError as error:
            if self.required:
                raise
            log.warning("%s: training starts again", error.found)
            return None
        log.info("resuming after step %d, from %s", state[KEY]["step"], self.path)
        return state

    def batch_size(self) -> int | None:
        """Return the batch size in this owner's checkpoint; None without one that can be read."""
        if not self.path.exists():
            return None
        try:
            about = load(self.path)[KEY]["about"]
        except GpufeedError:
            return None
        return about.get("batch_size") if about.get("owner") == self.owner else None

    def take(self, folder: Path) -> list[dict[str, Any]]:
        """Copy the checkpoint of another run's folder here, so that training resumes from it.

        Returns the entries of its finished epochs. Raises GpufeedError for a file that is no checkpoint.
        """
        source = replace(self, folder=folder).path
        epochs = load(source)[KEY]["recorder"]["epochs"]
        if source.resolve() != self.path.resolve():
            self.write(lambda partial: shutil.copyfile(source, partial))
        return epochs

    def remove(self) -> None:
        """Remove the file, once the training is over."""
        self.path.unlink(missing_ok=True)
        self.path.with_name(self.path.name + ".partial").unlink(missing_ok=True)


def load(path: Path) -> dict[str, Any]:
    """Return the state in a file, on the CPU; raise GpufeedError for a file that is no checkpoint."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        if {"about", "step", "recorder"} <= state[KEY].keys():
            return state
        error = "without our part"
    except Exception as raised:  # UnpicklingError, RuntimeError, KeyError and others
        error = type(raised).__name__
    raise GpufeedError(f"{path} is no checkpoint ({error})", "a complete file of this gpufeed", START_AGAIN)


def check_stamp(path: Path, found: object, expected: dict[str, Any]) -> None:
    """Raise GpufeedError for the file of another training. found, expected: from `stamp`."""
    known = found if isinstance(found, dict) else {}
    other = [key for key in expected if known.get(key) != expected[key]]
    if other or found != expected:
        raise GpufeedError(
            f"{path} is of another training ({', '.join(other)})",
            "one of the same data, model, device and versions",
            START_AGAIN,
        )


@contextmanager
def heeding(job: Training) -> Iterator[None]:
    """Have SIGTERM make the training write its state and end, if it keeps checkpoints."""
    if job.checkpoints is None:
        yield
        return
    with sigterm_handler.handling():
        yield


def stamp(trainer: str, about: dict[str, Any]) -> dict[str, Any]:
    """Return the fields by which a trainer's file identifies its training."""
    return {"format": FORMAT, "trainer": trainer, **about}


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """Return torch's random states, uint8 tensors on the CPU."""
    state = {"cpu": torch.get_rng_state()}
    return state | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def set_random_state(state: dict[str, torch.Tensor], device: torch.device) -> None:
    """Restore torch's random states."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


@contextmanager
def resumable(folder: str | Path, *owner: str) -> Iterator[Checkpoints]:
    """Yield the checkpoints of a job; if it is asked to end, ask Slurm to start it again.

    folder: of the checkpoints, outside the job's outputs, which Snakemake deletes before it restarts a job.
    owner: texts that identify the training, including the digest of its code.
    """
    try:
        yield Checkpoints(Path(folder), CHECKPOINT_STEPS, ", ".join(owner))
    except sigterm_handler.Ended:
        sigterm_handler.requeue()
        raise


def remove_if_done(checkpoints: Checkpoints, status: str) -> None:
    """Remove the checkpoints of a training that is `done`; others may be tried again."""
    if status == "done":
        checkpoints.remove()
        with suppress(OSError):  # it may hold outputs
            checkpoints.folder.rmdir()
