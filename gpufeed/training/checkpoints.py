"""Resume a training that was killed: its state is on disk, every so many steps.

What is resumed: the weights, the optimiser, the gradient scaler, the next batch of every rank's loader,
the random numbers of host and device, the rows and epochs so far. The weights become those of an undisturbed
training, bit by bit; with three ranks or more up to rounding, since DDP changes the layout of its gradients,
and the order of their sums, after its first step. Its times are then of several processes: no timing.

At SIGTERM a training writes its state after the current step, and ends. In several processes that is after
a step on which all agree.
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
CHECKPOINT_STEPS = 200  # from one to the next by default: seconds to minutes of training
FORMAT = "gpufeed checkpoint 1"
KEY = "gpufeed"  # of our part in the file, beside a trainer's own
START_AGAIN = "resume from the folder of another run, or leave resume out to train from the start"


class Training(Protocol):
    """What a checkpoint reads of a TrainJob, which holds the checkpoints."""

    model: nn.Module
    loader: Loader
    options: Mapping[str, Any]
    precision: str
    checkpoints: "Checkpoints | None"

    def total_steps(self) -> int: ...


@dataclass(frozen=True)
class Checkpoints:
    """Where the state of a training is kept, and every how many steps it is written.

    owner: what training it is, in any words; a file of another owner is not gone on with. required: whether
    somebody asked to go on, so that a file that cannot be gone on with is an error.
    """

    folder: Path
    every: int
    owner: str = ""
    required: bool = False

    @property
    def path(self) -> Path:
        """The file; it holds the last state that was written whole."""
        return Path(self.folder) / CHECKPOINT

    def due(self, step: int, asked: bool) -> bool:
        """Whether the state is to be written after so many steps. asked: whether the training has to end."""
        return step > 0 and (step % self.every == 0 or asked)

    def write(self, save: Callable[[Path], None]) -> None:
        """Replaces the file by what `save` writes: whole or not at all, a loss of power included."""
        with whole(self.path) as partial:
            save(partial)
            with partial.open("rb") as file:
                os.fsync(file.fileno())

    def end(self, step: int) -> NoReturn:
        """Raises sigterm_handler.Ended; the state after so many steps is written."""
        log.info("asked to end: the state after step %d is kept in %s", step, self.path)
        raise sigterm_handler.Ended

    def about(self, job: Training) -> dict[str, Any]:
        """What a file must say of the training that it belongs to."""
        request, shapes = (
            job.loader.request,
            [
                (name, list(tensor.shape), str(tensor.dtype))
                for name, tensor in job.model.state_dict().items()
            ],
        )
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
        """The state that `trainer` wrote for this very training, on the CPU; None without one.

        A file that is damaged, or of another training, is left out with a warning; where it is required it
        raises GpufeedError.
        """
        if not self.path.exists() and not self.required:
            return None
        try:
            state = load(self.path)
            check_stamp(self.path, state[KEY]["about"], stamp(trainer, self.about(job)))
        except GpufeedError as error:
            if self.required:
                raise
            log.warning("%s: it starts again", error.found)
            return None
        log.info("going on after step %d, from %s", state[KEY]["step"], self.path)
        return state

    def batch_size(self) -> int | None:
        """That of this owner's training whose state is kept; None without a state that can be read."""
        if not self.path.exists():
            return None
        try:
            about = load(self.path)[KEY]["about"]
        except GpufeedError:
            return None
        return about.get("batch_size") if about.get("owner") == self.owner else None

    def take(self, folder: Path) -> list[dict[str, Any]]:
        """Copies the file of another run's folder to here, so that it is the one that is gone on from.

        Returns the entries of the epochs that are over in it. Raises GpufeedError for what is no checkpoint.
        """
        source = replace(self, folder=folder).path
        epochs = load(source)[KEY]["recorder"]["epochs"]
        if source.resolve() != self.path.resolve():
            self.write(lambda partial: shutil.copyfile(source, partial))
        return epochs

    def remove(self) -> None:
        """Once the training is over."""
        self.path.unlink(missing_ok=True)
        self.path.with_name(self.path.name + ".partial").unlink(missing_ok=True)


def load(path: Path) -> dict[str, Any]:
    """The state in a file, on the CPU. Raises GpufeedError for what is no checkpoint."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        if {"about", "step", "recorder"} <= state[KEY].keys():
            return state
        error = "without our part"
    except Exception as raised:  # by what the bytes look like: UnpicklingError, RuntimeError, KeyError ...
        error = type(raised).__name__
    raise GpufeedError(f"{path} is no checkpoint ({error})", "a whole file of this gpufeed", START_AGAIN)


def check_stamp(path: Path, found: object, expected: dict[str, Any]) -> None:
    """Raises GpufeedError for the file of another training. found, expected: as from `stamp`."""
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
    """Within it SIGTERM makes the training write its state and end, if it keeps any."""
    if job.checkpoints is None:
        yield
        return
    with sigterm_handler.handling():
        yield


def stamp(trainer: str, about: dict[str, Any]) -> dict[str, Any]:
    """What the file of a trainer says of its training."""
    return {"format": FORMAT, "trainer": trainer, **about}


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """Where the random numbers of torch are, uint8 tensors on the CPU."""
    state = {"cpu": torch.get_rng_state()}
    return state | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def set_random_state(state: dict[str, torch.Tensor], device: torch.device) -> None:
    """Goes on with them."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


@contextmanager
def resumable(folder: str | Path, *owner: str) -> Iterator[Checkpoints]:
    """Within it the job trains and writes what it makes; `over` then removes its checkpoints.

    folder: of these checkpoints; below none of the job's outputs, which Snakemake deletes before it starts
    a job again. owner: what training it is, in any words, the digest of its code among them. Where the
    training is asked to end, Slurm is asked to start the job again.
    """
    try:
        yield Checkpoints(Path(folder), CHECKPOINT_STEPS, ", ".join(owner))
    except sigterm_handler.Ended:
        sigterm_handler.requeue()
        raise


def remove_if_done(checkpoints: Checkpoints, status: str) -> None:
    """Removes the checkpoints of a training that is `done`; one that was skipped or failed is tried again."""
    if status == "done":
        checkpoints.remove()
        with suppress(OSError):  # it may hold what was made
            checkpoints.folder.rmdir()
