"""The plain trainer: a loop over batches, timed on the device's clock.

With synchronise `epoch` the host never waits for the device inside an epoch: events are recorded, and read at
its end together with the losses. With `step` the host waits once the batch has arrived and again after the
step, as in a loop that prints the time of every step.
"""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gpufeed.loaders.base import DeferredGather, Loader
from gpufeed.system import sigterm_handler
from gpufeed.system.timing import synchronise
from gpufeed.training.checkpoints import KEY, heeding, random_state, set_random_state, stamp
from gpufeed.training.cuda_graph import GraphedStep
from gpufeed.training.engines.base import Trainer, TrainJob, TrainResult
from gpufeed.training.optimisers import learning_rates, rate_at, set_learning_rate
from gpufeed.training.recorder import Recorder
from gpufeed.training.step import TrainStep
from gpufeed.training.warmup import warm_up


class PlainTrainer(Trainer):
    """Mixed precision, three optimisers, one-cycle or constant rate, channels last.

    Optionally the model is compiled, and the whole step is captured as a CUDA graph; both work together.
    """

    takes_rows = True

    def __init__(self, job: TrainJob):
        super().__init__(job)
        self.images_in_epoch = job.loader.share
        self.rates = learning_rates(job.options, job.total_steps())

    def prepare(self, example: torch.Tensor | DeferredGather) -> None:
        job = self.job
        job.model.train()
        if job.channels_last:
            job.model.to(memory_format=torch.channels_last)
        self.train_step = self.step = TrainStep(job)
        if job.device.type == "cuda":
            usual = job.options.get("torch_defaults", False)
            torch.backends.cudnn.benchmark = not usual  # worth a search, as there are few shapes
            if usual and job.precision == "fp32":
                torch.backends.cudnn.allow_tf32 = (
                    True  # torch's default: in convolutions, not in matrix products
                )
        if job.device.type == "cuda" or job.compile:
            warm_up(self.train_step, example, self.images_in_epoch % len(example))
        if job.cuda_graphs:
            self.step = GraphedStep(self.train_step, example)
        synchronise(job.device)

    def run(self, least_s: float = 0.0) -> TrainResult:
        recorder = Recorder(self.job, least_s)
        with heeding(self.job):
            self._resume(recorder)
            return self._run(recorder)

    def over(
        self, loader: Loader, epochs: int = 0, steps: int | None = None, least_s: float = 0.0
    ) -> TrainResult:
        """Train on another open loader with the step that `prepare` made, as `run` would.

        It begins with the schedule's first rates and the current weights, and does not evaluate, report
        epochs or keep checkpoints. epochs: whole ones; or so many `steps`, and more until least_s.
        """
        nobody = {"judge": None, "on_epoch": None, "checkpoints": None}
        job = replace(self.job, loader=loader, epochs=epochs, steps=steps, **nobody)
        return self._run(Recorder(job, least_s))

    def _run(self, recorder: Recorder) -> TrainResult:
        while recorder.step < recorder.total:
            recorder.begin()
            self._train(recorder)
            recorder.end_epoch()
            self._save_if_due(recorder)
        return recorder.result()

    def _train(self, recorder: Recorder) -> None:
        """Train on the remaining batches of the epoch, up to the last step of the run."""
        with closing(iter(recorder.job.loader)) as batches:
            for batch in batches:
                recorder.arrived(batch)
                set_learning_rate(self.train_step.optimiser, rate_at(self.rates, recorder.step))
                loss = self.step(batch.source, batch.labels, batch.ids, recorder.epoch)
                recorder.trained(batch, loss)
                if recorder.run_is_over():
                    break
                if not recorder.epoch_is_over:  # otherwise end_epoch comes first
                    self._save_if_due(recorder)

    def _save_if_due(self, recorder: Recorder) -> None:
        """Write a checkpoint, off the clock."""
        checkpoints, asked, step = recorder.job.checkpoints, sigterm_handler.received(), recorder.step
        if checkpoints is None or not checkpoints.due(step, asked) or step == recorder.total:
            return
        recorder.settle()
        checkpoints.write(lambda path: self._save(recorder, path))
        if asked:
            checkpoints.end(step)
        recorder.begin()

    def _save(self, recorder: Recorder, path: Path) -> None:
        job, step = self.job, self.train_step
        ours = {
            "about": stamp("plain", job.checkpoints.about(job)),
            "step": recorder.step,
            "loader": job.loader.state_dict(),
            "recorder": recorder.state_dict(),
            "random": random_state(job.device),
        }
        state = {"model": job.model.state_dict(), "optimiser": step.optimiser.state_dict()}
        torch.save({KEY: ours, **state, "scaler": step.scaler.state_dict()}, path)

    def _resume(self, recorder: Recorder) -> None:
        """Resume from the checkpoint, if there is one of this training."""
        job, step = self.job, self.train_step
        state = job.checkpoints.read("plain", job) if job.checkpoints is not None else None
        if state is None:
            return
        job.model.load_state_dict(state["model"])  # in place: a CUDA graph reads these tensors
        load_optimiser(step.optimiser, state["optimiser"])
        if step.scaler.is_enabled():
            step.scaler.load_state_dict(state["scaler"])
        job.loader.load_state_dict(state[KEY]["loader"])
        recorder.load_state_dict(state[KEY]["recorder"])
        set_random_state(state[KEY]["random"], job.device)


def load_optimiser(optimiser: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Load the state, in place if the optimiser has one, since a CUDA graph may read its tensors."""
    present = optimiser.state_dict()["state"]
    if not present:
        optimiser.load_state_dict(saved)
        return
    for number, values in saved["state"].items():
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                present[number][name].copy_(value)
