"""Rows and epoch entries of a training, and the end of its measurement, the same for every trainer.

A measured run continues until its steady state is long enough, since a second of steady state is no
measurement of a loader. Its model stays that of the planned run.
"""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from gpufeed.core.errors import GpufeedError
from gpufeed.loaders.base import Batch
from gpufeed.system.timing import Mark, Span, StepMarks, synchronise, throughput, warmup
from gpufeed.training.batch_printing import LOGGER
from gpufeed.training.distributed.process_group import gathered, images_in_step, steps_in_epoch, summed
from gpufeed.training.engines.base import TrainJob, TrainResult

log = logging.getLogger("gpufeed")


def summarise_epoch(
    epoch: int, marks: Sequence[StepMarks], losses: Sequence[torch.Tensor]
) -> tuple[dict, list[dict]]:
    """Return the entry of an epoch in the record and its rows; the device must have finished the epoch.

    losses: 0-dimensional, one a step. Raises GpufeedError at the first one that is not finite.
    """
    values = torch.stack(list(losses)).float().tolist()
    rows = [mark.row(loss) for mark, loss in zip(marks, values, strict=True)]
    check_losses(rows)
    return epoch_entry(epoch, rows), rows


def epoch_entry(epoch: int, rows: Sequence[Mapping]) -> dict:
    """Return the entry of an epoch in the record from all of its rows, whose totals add up to the epoch."""
    images, epoch_s = sum(row["images"] for row in rows), sum(row["total_ms"] for row in rows) / 1e3
    return {
        "epoch": epoch,
        "steps": len(rows),
        "images": images,
        "epoch_s": epoch_s,
        "images_per_s": images / epoch_s,
        "train_loss": sum(row["loss"] * row["images"] for row in rows) / images,
        "accuracy": None,
    }


def log_epoch(entry: dict) -> None:
    log.info(
        "epoch %d: %d steps, %.2f s, %.0f images/s, loss %.4f",
        *(entry[key] for key in ("epoch", "steps", "epoch_s", "images_per_s", "train_loss")),
    )


def check_images(job: TrainJob, epoch: int, images: int, run_is_over: bool) -> None:
    """Raise GpufeedError if an epoch lost or repeated samples of this rank.

    images: how many the loader yielded. run_is_over: a run of `steps` may end before its epoch does.
    """
    expected = job.loader.share
    cut_short = job.steps is not None and run_is_over
    if images == expected or (cut_short and 0 < images < expected):
        return
    raise GpufeedError(
        f"{images} images from {type(job.loader).__name__} in epoch {epoch}",
        f"{expected}, each sample once",
        "choose another loader and report this one",
    )


def check_losses(rows: list[dict]) -> None:
    """Raise GpufeedError at the first loss that is not finite."""
    for row in rows:
        if not math.isfinite(row["loss"]):
            raise GpufeedError(
                f"training loss {row['loss']} at step {row['step']} (epoch {row['epoch']})",
                "a finite loss",
                "lower trainer.learning_rate, or choose precision bf16 or fp32",
            )


class MinimumDuration:
    """Decides at the end of a run whether it continues; `planned` is whether it has not continued yet.

    Further steps train at the schedule's last rate; afterwards the model's weights are restored. Meanwhile
    these are in host memory, so that the peak of the device's memory is that of the planned run.
    """

    def __init__(self, job: TrainJob, least_s: float):
        """Set the least duration in seconds of all steps after warm-up; 0: the run ends as planned."""
        self.job, self.least_s = job, least_s
        self.kept: dict[str, torch.Tensor] | None = None
        self.until_s = math.inf  # on the host's clock

    @property
    def planned(self) -> bool:
        return self.kept is None

    @property
    def time_is_up(self) -> bool:
        """Whether a run of `steps` has lasted long enough, even with fewer steps than estimated.

        An estimate from steps with prefetched batches is too high, since later steps may be much slower.
        """
        return time.perf_counter() >= self.until_s

    def steps(self, rows: Sequence[Mapping], epochs: Sequence[Mapping]) -> int:
        """Return how many more steps to make; 0 if the run was long enough. Every rank must call it.

        rows: of all steps so far. epochs: their entries, or {"steps": ...} for one that is not over. The
        result is whole epochs, except for a run of `steps`, which may end anywhere.
        """
        if not self.least_s:
            return 0
        in_epoch = steps_in_epoch(self.job.loader)
        left_out = warmup(epochs, in_epoch, self.job.loader.request.ahead)["steps"]
        steady_s = min(gathered(throughput(rows[left_out:])["seconds"], self.job.loader.request.world_size))
        if steady_s >= self.least_s:
            return 0
        if self.planned:
            self._keep()
        if self.job.steps is not None and self.job.loader.request.world_size == 1:
            self.until_s = time.perf_counter() + self.least_s - steady_s
        missing = (self.least_s - steady_s) * (len(rows) - left_out) / max(steady_s, 1e-6)
        # at most ten times as long at once, since a first estimate from a few steps may be far off
        missing = max(1, min(math.ceil(missing), 10 * len(rows)))
        return missing if self.job.steps is not None else math.ceil(missing / in_epoch) * in_epoch

    def _keep(self) -> None:
        self.kept = {
            name: tensor.to("cpu", copy=True) for name, tensor in self.job.model.state_dict().items()
        }

    @torch.no_grad()
    def put_back(self) -> None:
        """Restore the weights of the planned end, in place, since a CUDA graph reads these tensors."""
        if self.kept is not None:
            for name, tensor in self.job.model.state_dict().items():
                tensor.copy_(self.kept[name])


batches_log = logging.getLogger(LOGGER)


def forked_rng(device: torch.device) -> AbstractContextManager:
    """Return a context after which torch's random states are restored."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


class Recorder:
    """Records one run. `step` and `epoch` count from 0, across resumed runs too.

    With several ranks, images and losses are those of all ranks together, times those of this one.
    """

    def __init__(self, job: TrainJob, least_s: float = 0.0):
        """Start recording. least_s: as in Trainer.run; `total` grows if the run is shorter."""
        self.job, self.total, self.in_epoch = job, job.total_steps(), steps_in_epoch(job.loader)
        self.minimum_duration = MinimumDuration(job, least_s)
        # there are no events for mps: its steps are timed by waiting for each
        self.waits = job.synchronise == "step" or job.device.type == "mps"
        self.rows: list[dict] = []  # of the epochs that are over
        self.epochs: list[dict] = []
        self.first_batch_s = 0.0
        self.read: list[dict] = []  # rows of the current epoch
        self.own_images = 0  # of the current epoch, on this rank
        self.resumed: list[int] = []  # steps after which another process resumed the run
        self.marks: list[StepMarks] = []  # of the current epoch, not read yet
        self.losses: list[torch.Tensor] = []  # each 0-dimensional, on the device

    @property
    def step(self) -> int:
        """Number of steps of the run so far."""
        return len(self.rows) + self.step_in_epoch

    @property
    def step_in_epoch(self) -> int:
        return len(self.read) + len(self.marks)

    @property
    def epoch(self) -> int:
        """The current epoch."""
        return len(self.epochs)

    @property
    def epoch_is_over(self) -> bool:
        """Whether no step is left in the current epoch, or in the run."""
        return self.step_in_epoch == self.in_epoch or self.step == self.total

    def run_is_over(self) -> bool:
        """Return whether the step was the run's last; `total` grows at the planned end of a short run."""
        if self.minimum_duration.time_is_up:
            self.total = self.step
        if self.step == self.total and self.minimum_duration.least_s:
            self.settle()
            epochs = [*self.epochs, {"steps": self.step_in_epoch}]
            self.total += self.minimum_duration.steps([*self.rows, *self.read], epochs)
            self.begin()
        return self.step == self.total

    def begin(self) -> None:
        """Start the clock of an epoch, or of the rest of one."""
        synchronise(self.job.device)
        self.previous = Mark(self.job.device)

    def arrived(self, batch: Batch) -> None:
        """Mark that the batch of the next step has arrived and its training begins."""
        if not self.step:
            self.first_batch_s = time.perf_counter() - self.previous.host_s
        if self.waits:
            synchronise(self.job.device)
        self.start = Mark(self.job.device)

    def trained(self, batch: Batch, loss: torch.Tensor) -> None:
        """Mark that the step on the batch is queued. loss: 0-dimensional, on the device."""
        if self.waits:
            synchronise(self.job.device)
        end, images = Mark(self.job.device), len(batch.labels)
        span = Span(self.start, end)
        self.marks.append(
            StepMarks(self.epoch, self.step, images, self.previous, span, batch.load_ms, batch.transfer)
        )
        self.losses.append(loss)
        self.own_images += images
        self.previous = end
        if self.waits and self.minimum_duration.planned and batches_log.handlers:
            synchronise(self.job.device)
            batches_log.info("", extra={"batch": self.marks[-1].row(math.nan)})
            self.previous = Mark(self.job.device)  # the handler's time belongs to no batch

    def settle(self) -> None:
        """Wait for the device and read all marks; raise GpufeedError at a loss that is not finite."""
        synchronise(self.job.device)  # from here on events and losses may be read
        if self.marks:
            images, losses = self._over_ranks()
            rows = [
                mark.row(loss) | {"images": n}
                for mark, loss, n in zip(self.marks, losses, images, strict=True)
            ]
            self.read += rows
            self.marks, self.losses = [], []
            check_losses(rows)

    def _over_ranks(self) -> tuple[list[int], list[float]]:
        """Return the images and mean loss of each unread step, over all ranks."""
        images, losses = [mark.images for mark in self.marks], torch.stack(self.losses).float()
        request = self.job.loader.request
        if request.world_size == 1:
            return images, losses.tolist()
        own = torch.tensor(images, dtype=torch.float64, device=losses.device)
        # the loss of a rank without images left does not count
        shares = torch.where(own > 0, own * losses.double(), torch.zeros_like(own))
        counted, weighted = summed(torch.stack([own, shares]), request)
        whole, first = [round(n) for n in counted.tolist()], len(self.read)
        for step, n in enumerate(whole, first):
            if n != (expected := images_in_step(self.job.loader, step)):
                raise GpufeedError(
                    f"{n} images of {request.world_size} ranks in step {step} of epoch {self.epoch}",
                    f"{expected}, the number by which the gradients were weighted",
                    "choose another loader and report this one",
                )
        return whole, (weighted / counted).tolist()

    def end_epoch(self) -> dict:
        """Read the rest of the epoch, off the clock; return its entry and go on to the next epoch.

        Raises GpufeedError for a loss that is not finite and for lost or repeated samples.
        """
        self.settle()
        check_images(self.job, self.epoch, self.own_images, self.step == self.total)
        entry = epoch_entry(self.epoch, self.read)
        self.rows += self.read
        self.epochs.append(entry)
        self.read, self.own_images = [], 0
        if self.job.loader.request.rank == 0:
            log_epoch(entry)
        # the planned end is evaluated after the run
        if self.job.judge is not None and self.step < self.total and self.minimum_duration.planned:
            entry["accuracy"] = self._judged()
        if self.job.on_epoch is not None:
            self.job.on_epoch(entry)
        return entry

    def _judged(self) -> dict:
        """Evaluate between two epochs without an effect on the training; return the accuracy."""
        with forked_rng(self.job.device):
            accuracy = self.job.judge()
        self.job.model.train()
        log.info("held out: top-1 %.4f, loss %.4f", accuracy["top1"], accuracy["loss"])
        return accuracy

    def result(self) -> TrainResult:
        """Return the run's result; restore the model of the planned end."""
        self.minimum_duration.put_back()
        return TrainResult(self.rows, self.epochs, self.first_batch_s, self.resumed)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain values; call `settle` before."""
        names = ("rows", "epochs", "first_batch_s", "read", "own_images", "resumed")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume the run from a state."""
        for name, value in state.items():
            setattr(self, name, value)
        self.resumed = [*self.resumed, self.step]
