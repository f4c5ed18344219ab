"""What Lightning runs: our training step as a LightningModule, our loader as a LightningDataModule.

Batches come as the loader gives them, on the device already. Each step is marked where Lightning hands its
batch to the module and where it is done with it, so that whatever Lightning does in a step is part of it.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Callback, LightningDataModule, LightningModule
from pytorch_lightning import Trainer as Engine

from gpufeed.loaders.base import Batch, Loader
from gpufeed.training.checkpoints import KEY, random_state, set_random_state, stamp
from gpufeed.training.end_request import Asked
from gpufeed.training.engines.base import TrainJob
from gpufeed.training.optimisers import learning_rates, rate_at, set_learning_rate
from gpufeed.training.ranks import gathered, images_in_step, steps_in_epoch
from gpufeed.training.recorder import Recorder
from gpufeed.training.step import TrainStep


class Batches:
    """The batches of an open loader; iterating it once is an epoch, or what is left of one.

    Every rank has as many: one whose share is used up gets a batch again, without labels to count, so that
    it takes part in what all ranks do together. Its state is that of the loaders of all ranks.
    """

    def __init__(self, loader: Loader, recorder: Recorder, example: torch.Tensor):
        """example: as in Trainer.prepare."""
        self.loader, self.recorder, self.length = loader, recorder, steps_in_epoch(loader)
        device = example.device
        nothing = torch.zeros(len(example), dtype=torch.int64, device=device)
        self.filler = Batch(example, nothing, nothing, 0.0)
        self.running: Iterator[Batch] | None = None

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[tuple[Batch, bool]]:
        self.close()
        self.running = self._epoch()
        return self.running

    def _epoch(self) -> Iterator[tuple[Batch, bool]]:
        """Each batch, and whether it counts. Starts the clock when the first one is asked for."""
        self.recorder.begin()
        if self.recorder.step_in_epoch < len(self.loader):
            with closing(iter(self.loader)) as batches:
                for batch in batches:
                    yield batch, True
        while True:
            yield self.filler, False

    def close(self) -> None:
        """Ends an epoch before its end; safe to call twice."""
        if self.running is not None:
            self.running.close()
        self.running = None

    def state_dict(self) -> dict[str, Any]:
        return {"ranks": gathered(self.loader.state_dict(), self.loader.request.world_size)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state["ranks"][self.loader.request.rank])


class Data(LightningDataModule):
    """The training batches, marked as they arrive and augmented.

    Held-out images are asked about by gpufeed, outside of Lightning.
    """

    def __init__(self, batches: Batches, step: TrainStep, recorder: Recorder):
        super().__init__()
        self.batches, self.step, self.recorder = batches, step, recorder

    def train_dataloader(self) -> Batches:
        return self.batches

    def on_before_batch_transfer(self, batch: tuple[Batch, bool], dataloader_idx: int) -> Any:
        self.recorder.arrived(batch[0])
        return batch

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """As it is: the loader has done that."""
        return batch

    def on_after_batch_transfer(self, batch: tuple[Batch, bool], dataloader_idx: int) -> Any:
        """Here and not in the step: there Lightning's autocast would round what the augment computes."""
        given, counts = batch
        return replace(given, images=self.step.inputs(given.images, given.ids, self.recorder.epoch)), counts


class Module(LightningModule):
    """One training step as in trainer plain: the same model, loss, optimiser and learning rates."""

    def __init__(self, job: TrainJob, step: TrainStep, recorder: Recorder):
        super().__init__()
        self.model = step.model  # so that Lightning knows its parameters
        self.job, self.recorder = job, recorder
        self.train_step = step
        self.rates = learning_rates(job.options, job.total_steps())
        self.told: torch.Tensor | None = None  # the loss of the step, 0-dimensional, on the device

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.train_step.optimiser

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        set_learning_rate(self.train_step.optimiser, rate_at(self.rates, self.recorder.step))

    def training_step(self, batch: tuple[Batch, bool], batch_idx: int) -> torch.Tensor:
        given, counts = batch
        loss = self.train_step.loss(given.images, given.labels)
        self.told = loss.detach()
        weight = self.weight(len(given.labels) if counts else 0)
        return loss if weight == 1 else loss * weight

    def weight(self, images: int) -> float:
        """What makes the mean of the ranks' gradients that of one batch of all their images.

        images: of this rank. The last step of an epoch may have fewer on one rank than on another.
        """
        request = self.job.loader.request
        whole = images_in_step(self.job.loader, self.recorder.step_in_epoch)
        return 1.0 if request.world_size == 1 else images * request.world_size / whole


class Steps(Callback):
    """Marks the steps, ends the epochs, and writes the checkpoints: Lightning's own, and our part in them."""

    def __init__(self, job: TrainJob, recorder: Recorder, batches: Batches):
        self.job, self.recorder, self.batches = job, recorder, batches
        self.check_every = int(job.options.get("check_every", 0))
        self.random: dict[str, torch.Tensor] | None = None
        self.asked = Asked(job.device, job.loader.request.world_size)

    def on_train_start(self, trainer: Engine, pl_module: Module) -> None:
        if self.random is not None:  # last of all, so that nothing draws from them before a step does
            set_random_state(self.random, self.job.device)
            self.random = None

    def on_train_batch_end(
        self, trainer: Engine, pl_module: Module, outputs: Any, batch: Any, batch_idx: int
    ):
        recorder, (given, counts) = self.recorder, batch
        recorder.trained(given if counts else replace(given, labels=given.labels[:0]), pl_module.told)
        if not recorder.run_is_over():
            trainer.fit_loop.epoch_loop.max_steps = recorder.total  # it may have grown
        if recorder.epoch_is_over:
            self.batches.close()
            recorder.end_epoch()
        elif self.check_every and recorder.step % self.check_every == 0:
            recorder.settle()
        self._save_if_due(trainer)

    def _save_if_due(self, trainer: Engine) -> None:
        checkpoints, recorder = self.job.checkpoints, self.recorder
        asked = checkpoints is not None and self.asked.after(recorder.step)
        if (
            checkpoints is None
            or not checkpoints.due(recorder.step, asked)
            or recorder.step == recorder.total
        ):
            return
        recorder.settle()
        if self.job.loader.request.rank == 0:
            checkpoints.write(trainer.save_checkpoint)
        else:
            trainer.save_checkpoint(checkpoints.path)  # takes part; rank 0 writes
        gathered(None, self.job.loader.request.world_size)  # no rank goes on before the file has its name
        if asked:
            checkpoints.end(recorder.step)
        recorder.begin()

    def on_save_checkpoint(self, trainer: Engine, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        job, recorder = self.job, self.recorder
        own = {"images": recorder.own_images, "random": random_state(job.device)}
        checkpoint[KEY] = {
            "about": stamp("lightning", job.checkpoints.about(job)),
            "step": recorder.step,
            "recorder": recorder.state_dict(),
            "ranks": gathered(own, job.loader.request.world_size),
        }

    def on_load_checkpoint(self, trainer: Engine, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        state = checkpoint[KEY]
        own = state["ranks"][self.job.loader.request.rank]
        self.recorder.load_state_dict(state["recorder"] | {"own_images": own["images"]})
        self.random = own["random"]


def checkpoint_of(job: TrainJob) -> Path | None:
    """The file that a run of Lightning goes on from; None without one of this very training on every rank."""
    if job.checkpoints is None:
        return None
    state = job.checkpoints.read("lightning", job)
    steps = gathered(state and state[KEY]["step"], job.loader.request.world_size)
    if steps[0] is None or set(steps) != {steps[0]}:
        return None
    return job.checkpoints.path
