"""The plain trainer: a loop over batches, with its marks on the device's clock.

With synchronise `epoch` the host never waits for the device inside an epoch: events are recorded and
read, and losses fetched, at its end. With `step` the host waits once the batch has arrived and again
after the step, as a loop does that prints the time of every step.
"""

import logging
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager

import torch

from gpufeed.timing import Mark, Span, StepMarks, synchronise
from gpufeed.trainers.base import Trainer, TrainJob, TrainResult
from gpufeed.trainers.epochs import check_images, log_epoch, summarise
from gpufeed.trainers.graph import GraphedStep
from gpufeed.trainers.optim import learning_rates, set_learning_rate
from gpufeed.trainers.step import Snapshot, TrainStep

log = logging.getLogger("gpufeed")
WARMUP_STEPS = 3  # what the PyTorch notes on CUDA graphs use before a capture


def forked_rng(device: torch.device) -> AbstractContextManager:
    """Within it random numbers are drawn that leave no trace afterwards."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


@contextmanager
def side_stream(device: torch.device) -> Iterator[None]:
    """Within it work runs on a CUDA stream of its own, in order with what comes before and after."""
    if device.type != "cuda":
        yield
        return
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        yield
    torch.cuda.current_stream(device).wait_stream(side)


class PlainTrainer(Trainer):
    """Mixed precision, three optimisers, one-cycle or constant rate, channels last.

    On request the model is compiled, and the whole step captured as a CUDA graph; both work together.
    """

    def __init__(self, job: TrainJob):
        super().__init__(job)
        # mps has no events here: its steps can be timed only by waiting for each
        self.waits = job.synchronise == "step" or job.device.type == "mps"
        self.images_in_epoch = len(job.loader.order())
        self.rates = learning_rates(job.options, job.total_steps())
        self.first_batch_s = 0.0

    def prepare(self, example: torch.Tensor) -> None:
        job = self.job
        job.model.train()
        if job.channels_last:
            job.model.to(memory_format=torch.channels_last)
        self.train_step = self.step = TrainStep(job)
        if job.device.type == "cuda":
            torch.backends.cudnn.benchmark = True  # few shapes, so that each is worth a search
        if job.device.type == "cuda" or job.compile:
            self._warm_up(example)
        if job.cuda_graphs:
            self.step = GraphedStep(self.train_step, example)
        synchronise(job.device)

    def _warm_up(self, example: torch.Tensor) -> None:
        """Runs steps of both batch sizes of an epoch on a side stream, then puts the weights back.

        Libraries load, convolutions are searched, the model is compiled and the optimiser's state allocated
        here, not under the clock and not in a capture.
        """
        device, snapshot = self.job.device, Snapshot(self.train_step)
        last = self.images_in_epoch % len(example)
        # as the steps will have it: an augment may have a kernel for each kind, to be loaded before a capture
        epoch = torch.zeros((), dtype=torch.int64, device=device) if self.job.cuda_graphs else 0
        with forked_rng(device), side_stream(device), warnings.catch_warnings():
            # the optimiser says that it was made for a graph and runs without one: that is meant
            warnings.filterwarnings("ignore", message="This instance was constructed with capturable")
            for images in [example] * WARMUP_STEPS + ([example[:last]] if last else []):
                labels = torch.zeros(len(images), dtype=torch.int64, device=device)
                self.train_step(images, labels, torch.arange(len(images), device=device), epoch)
            snapshot.put_back()
        synchronise(device)

    def run(self) -> TrainResult:
        rows: list[dict] = []
        epochs: list[dict] = []
        while len(rows) < len(self.rates):
            entry, added = self._epoch(len(epochs), len(rows))
            epochs.append(entry)
            rows += added
            log_epoch(entry)
            if self.job.judge is not None and len(rows) < len(self.rates):  # the end is judged after the run
                entry["accuracy"] = self._judged(self.job.judge)
        return TrainResult(rows, epochs, self.first_batch_s)

    def _judged(self, judge: Callable[[], dict]) -> dict:
        """The accuracy between two epochs, off the clock; training goes on as if nobody had asked."""
        with forked_rng(self.job.device):
            accuracy = judge()
        self.job.model.train()
        log.info("held out: top-1 %.4f, loss %.4f", accuracy["top1"], accuracy["loss"])
        return accuracy

    def _epoch(self, epoch: int, first_step: int) -> tuple[dict, list[dict]]:
        """One epoch, or what is left of the run: its entry in the record and its rows."""
        device = self.job.device
        synchronise(device)
        start = Mark(device)
        marks, losses = self._train(epoch, first_step, start)
        synchronise(device)  # the one wait of an epoch: from here on events and losses may be read
        check_images(self.job, epoch, first_step, marks)
        return summarise(epoch, start, marks, losses)

    def _train(self, epoch: int, first_step: int, start: Mark) -> tuple[list[StepMarks], list[torch.Tensor]]:
        """Trains on the batches of an epoch, up to the last step of the run; waits only if asked to."""
        device, rates, previous = self.job.device, self.rates[first_step:], start
        marks: list[StepMarks] = []
        losses: list[torch.Tensor] = []  # each 0-dimensional, on the device
        with closing(iter(self.job.loader)) as batches:
            for batch in batches:
                if not first_step and not marks:
                    self.first_batch_s = time.perf_counter() - start.host_s
                if self.waits:
                    synchronise(device)
                begin = Mark(device)
                set_learning_rate(self.train_step.optimiser, rates[len(marks)])
                losses.append(self.step(batch.images, batch.labels, batch.ids, epoch))
                if self.waits:
                    synchronise(device)
                end = Mark(device)
                step, images = first_step + len(marks), len(batch.labels)
                marks.append(
                    StepMarks(epoch, step, images, previous, Span(begin, end), batch.load_ms, batch.transfer)
                )
                previous = end
                if len(marks) == len(rates):
                    break
        return marks, losses
