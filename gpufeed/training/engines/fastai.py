"""The trainer `fastai`: a Learner with to_fp16 and fit_one_cycle, and a callback that times its steps.

The batches come from any of our loaders, with the augment's draws of the other trainers. With its Recorder,
as with fp16, fastai itself waits for the device in every step. It keeps no checkpoints: a killed training
starts again.
"""

import time
from collections.abc import Iterator
from functools import partial

import torch
from fastai.callback import fp16, schedule  # noqa: F401 (they give Learner to_fp16, to_bf16 and fit_one_cycle)
from fastai.callback.core import Callback, CancelFitException, CancelTrainException, TrainEvalCallback
from fastai.learner import Learner, Recorder
from fastai.optimizer import SGD, Adam, OptimWrapper
from torch import nn

from gpufeed.core.errors import GpufeedError, Skip, require_known
from gpufeed.loaders.base import Batch
from gpufeed.system.devices import AUTOCAST
from gpufeed.system.timing import Mark, Span, StepMarks, synchronise
from gpufeed.training.engines.base import Trainer, TrainJob, TrainResult
from gpufeed.training.engines.fastai_data import data_loaders
from gpufeed.training.optimisers import OPTIMISERS, make_optimiser
from gpufeed.training.recorder import MinimumDuration, check_images, log_epoch, summarise_epoch
from gpufeed.training.step import lay_out
from gpufeed.training.warmup import WARMUP_STEPS

ENDLESS = 1_000_000  # epochs; our callback ends the fit, at the planned end or later


class FastaiTrainer(Trainer):
    """Mixed precision on CUDA, fastai's or torch's optimisers, one-cycle schedule at constant momentum."""

    def __init__(self, job: TrainJob):
        """Raise Skip if fastai's mixed precision cannot run, GpufeedError for CUDA graphs and compile."""
        super().__init__(job)
        if job.precision in AUTOCAST and job.device.type != "cuda":
            raise Skip(
                f"Trainer fastai has mixed precision on CUDA GPUs only, and this cell's device is "
                f"{job.device.type}."
            )
        if job.compile:
            raise GpufeedError("a compiled model with trainer fastai", "none", "choose trainer plain")
        self.recorder = StepRecorder(job)

    def prepare(self, example: torch.Tensor) -> None:
        job = self.job
        job.model.train()
        if job.channels_last:
            job.model.to(memory_format=torch.channels_last)
        if job.device.type == "cuda":
            torch.backends.cudnn.benchmark = True  # worth a search, as there are few shapes
            self._warm_up(example)
        self.dls = data_loaders(job.loader, len(job.loader), self.inputs, job.device, self.recorder.arrived)
        self.learner = make_learner(job, self.dls, [WholeRun(job.total_steps()), self.recorder])
        synchronise(job.device)

    def inputs(self, images: torch.Tensor, ids: torch.Tensor, epoch: int) -> torch.Tensor:
        """Return the model's input: the augmented images, float (N, 3, H, W), in its memory format."""
        if self.job.augment is not None:
            images = self.job.augment(images, ids, epoch)
        return lay_out(images, self.job.channels_last)

    def _warm_up(self, example: torch.Tensor) -> None:
        """Train steps of both batch sizes with a separate Learner, then restore the weights."""
        job = self.job
        before = {name: tensor.clone() for name, tensor in job.model.state_dict().items()}
        batches = Warmup(example, job.loader.share % len(example))
        with torch.random.fork_rng(devices=[job.device]):
            learner = make_learner(job, data_loaders(batches, len(batches), self.inputs, job.device), [])
            train_model(learner, 1, job)
        with torch.no_grad():
            for name, tensor in job.model.state_dict().items():
                tensor.copy_(before[name])
        job.model.zero_grad(set_to_none=True)
        synchronise(job.device)

    def run(self, least_s: float = 0.0) -> TrainResult:
        job, recorder = self.job, self.recorder
        recorder.minimum_duration.least_s = least_s
        try:
            train_model(self.learner, ENDLESS, job)
        finally:
            self.dls.train.close()
        if recorder.error is not None:
            raise recorder.error
        recorder.minimum_duration.put_back()
        return TrainResult(recorder.rows, recorder.epochs, recorder.first_batch_s)


def train_model(learner: Learner, epochs: int, job: TrainJob) -> None:
    """Run fastai's one-cycle fit without its printing; the rate rises over `warmup_share` of the steps."""
    momentum = float(job.options["momentum"])
    with learner.no_logging():
        learner.fit_one_cycle(
            epochs,
            lr_max=float(job.options["learning_rate"]),
            pct_start=float(job.options["warmup_share"]),
            moms=(momentum, momentum, momentum),
        )


def make_learner(job: TrainJob, dls, callbacks: list[Callback]) -> Learner:
    """Return a Learner on the job's model, with a fresh optimiser."""
    options = job.options
    learner = Learner(
        dls,
        job.model,
        loss_func=nn.CrossEntropyLoss(label_smoothing=float(options["label_smoothing"])),
        opt_func=optimiser(job),
        lr=float(options["learning_rate"]),
        wd=float(options["weight_decay"]),
        cbs=[TrainEvalCallback(), *([Recorder()] if options["recorder"] else []), *callbacks],
        default_cbs=False,
    )
    if job.precision == "fp16":
        learner.to_fp16()
    elif job.precision == "bf16":
        learner.to_bf16()
    return learner


def optimiser(job: TrainJob):
    """Return a Learner's opt_func: fastai's optimiser of that name, or torch's."""
    options = job.options
    require_known("trainer.optimiser", options["optimiser"], OPTIMISERS)
    if options["optimiser_of"] == "torch":
        return OptimWrapper(opt=make_optimiser(job.model.parameters(), options, job.device))
    if options["optimiser"] == "sgd":
        return partial(SGD, mom=float(options["momentum"]), decouple_wd=False)
    return partial(Adam, decouple_wd=options["optimiser"] == "adamw")


class Warmup:
    """Batches of the shapes of an epoch, with any values."""

    def __init__(self, example: torch.Tensor, last: int):
        """Make the batches. last: size of the epoch's last batch, 0 if it is full."""
        self.images = [example] * WARMUP_STEPS + ([example[:last]] if last else [])

    def __len__(self) -> int:
        return len(self.images)

    def __iter__(self) -> Iterator[Batch]:
        for images in self.images:
            labels = torch.zeros(len(images), dtype=torch.int64, device=images.device)
            yield Batch(images, labels, torch.arange(len(images), device=images.device), 0.0)


class WholeRun(Callback):
    """Sets the schedule's progress by steps, since fastai counts whole epochs."""

    order, run_valid = 0, False  # after the counting of TrainEvalCallback, before ParamScheduler reads it

    def __init__(self, total: int):
        super().__init__()
        self.total = total

    def before_batch(self):
        self.learn.pct_train = min(1.0, self.train_iter / self.total)  # beyond the end the last rate


class StepRecorder(Callback):
    """Marks each step and turns the marks of an epoch into rows.

    A step's `train` begins when its batch has arrived, before the transforms, and ends after all other
    callbacks, so that it includes all that fastai does in a step. Errors are kept in `error` and end the fit,
    since fastai would add its own text to an error raised in a callback.
    """

    order, run_valid = 100, False

    def __init__(self, job: TrainJob):
        super().__init__()
        self.job, self.total = job, job.total_steps()
        # there are no events for mps: its steps are timed by waiting for each
        self.waits = job.synchronise == "step" or job.device.type == "mps"
        self.minimum_duration = MinimumDuration(job, 0.0)
        self.rows: list[dict] = []
        self.epochs: list[dict] = []
        self.first_batch_s = 0.0
        self.error: GpufeedError | None = None

    def before_epoch(self):
        synchronise(self.job.device)
        self.start = self.previous = Mark(self.job.device)
        self.marks, self.losses = [], []

    def arrived(self, batch: Batch) -> None:
        """Record a batch's arrival and its loader's times, before its transforms."""
        if not self.rows and not self.marks:
            self.first_batch_s = time.perf_counter() - self.start.host_s
        if self.waits:
            synchronise(self.job.device)
        self.begin = Mark(self.job.device)
        self.told = len(batch.labels), batch.load_ms, batch.transfer

    def after_batch(self):
        if self.waits:
            synchronise(self.job.device)
        end = Mark(self.job.device)
        step, (images, load_ms, transfer) = len(self.rows) + len(self.marks), self.told
        span = Span(self.begin, end)
        self.marks.append(StepMarks(self.epoch, step, images, self.previous, span, load_ms, transfer))
        self.losses.append(self.loss.detach())
        self.previous = end
        if self.minimum_duration.time_is_up:
            self.total = step + 1
        if step + 1 == self.total:
            self.total += self._further_steps()
            if step + 1 == self.total:
                raise CancelTrainException

    def _further_steps(self) -> int:
        """Return how many steps a run that is too short continues by; this is off the clock."""
        if not self.minimum_duration.least_s:
            return 0
        synchronise(self.job.device)
        rows = [*self.rows, *(mark.row(0.0) for mark in self.marks)]  # the losses are read with the epoch
        further = self.minimum_duration.steps(rows, [*self.epochs, {"steps": len(self.marks)}])
        self.previous = Mark(self.job.device)
        return further

    def after_train(self):
        self.dls.train.close()
        synchronise(self.job.device)  # from here on events and losses may be read
        try:
            images, steps = sum(mark.images for mark in self.marks), len(self.rows) + len(self.marks)
            check_images(self.job, self.epoch, images, steps == self.total)
            entry, rows = summarise_epoch(self.epoch, self.marks, self.losses)
        except GpufeedError as error:
            self.error = error
            raise CancelFitException from error
        self.epochs.append(entry)
        self.rows += rows
        log_epoch(entry)
        if self.job.on_epoch is not None:
            self.job.on_epoch(entry)

    def after_epoch(self):
        if len(self.rows) == self.total:
            raise CancelFitException
