"""The engine `lightning`: PyTorch Lightning around our loader, step and record.

Each process is one rank; gpufeed.training.distributed starts them if a cell has several devices. Without
SyncBatchNorm, batch normalisation is per device, as in most training scripts. Batches arrive on the device. A
step is timed from Lightning's passing its batch to the module until the module's return, so that it includes
all that Lightning does in a step.

Ranks get SIGTERM at different moments, perhaps in different steps. They ask each other after every few steps
and read the answer as many steps later. By then it has usually arrived; a host waits only if its device is
further behind, and then the device has enough work.
"""

import importlib.util
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_only
from pytorch_lightning import LightningDataModule, LightningModule
from pytorch_lightning import Trainer as Engine
from pytorch_lightning.callbacks import Callback, RichProgressBar, TQDMProgressBar
from pytorch_lightning.plugins.environments import LightningEnvironment, TorchElasticEnvironment
from pytorch_lightning.plugins.precision import MixedPrecision, Precision
from pytorch_lightning.strategies import DDPStrategy
from torch import distributed

from gpufeed.core.errors import GpufeedError
from gpufeed.loaders.base import Batch, Loader
from gpufeed.system import sigterm_handler
from gpufeed.system.devices import AUTOCAST
from gpufeed.system.timing import synchronise
from gpufeed.training.checkpoints import KEY, heeding, random_state, set_random_state, stamp
from gpufeed.training.distributed.process_group import gathered, images_in_step, steps_in_epoch
from gpufeed.training.engines.base import Trainer, TrainJob, TrainResult
from gpufeed.training.optimisers import learning_rates, rate_at, set_learning_rate
from gpufeed.training.recorder import Recorder
from gpufeed.training.step import TrainStep
from gpufeed.training.warmup import warm_up

ASK_EVERY = 4  # steps from a question to its answer, so that the state is written after 8 steps at the latest


class EndRequest:
    """Finds out whether a run ends early, so that all ranks learn it after the same step.

    One for each run of a rank; a single process need not ask.
    """

    def __init__(self, device: torch.device, world_size: int):
        self.device, self.world_size, on_gpu = device, world_size, device.type == "cuda"
        # 1 if any rank was asked to end
        self.answer = torch.zeros((), dtype=torch.int32, pin_memory=on_gpu)
        self.wait: Callable[[], object] | None = None  # waits for the answer; None before the first question

    def after(self, step: int) -> bool:
        """Return whether to end after so many steps of the run; every rank must call it after each step."""
        if self.world_size == 1:
            return sigterm_handler.received()
        if step % ASK_EVERY:
            return False
        if self.wait is not None:
            self.wait()
        told = bool(self.answer)
        self._ask()
        return told

    def _ask(self) -> None:
        """Start the exchange without waiting for it."""
        if self.device.type != "cuda":
            self.answer.fill_(sigterm_handler.received())
            self.wait = distributed.all_reduce(self.answer, distributed.ReduceOp.MAX, async_op=True).wait
            return
        given = torch.full((), sigterm_handler.received(), dtype=torch.int32, device=self.device)
        distributed.all_reduce(given, distributed.ReduceOp.MAX)  # the stream waits for it, the host does not
        self.answer.copy_(given, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()
        self.wait = copied.synchronize


class Batches:
    """The batches of an open loader; iterating once is an epoch, or the rest of one.

    Every rank has equally many: a rank without batches left gets a filler that does not count, so that it
    takes part in collective operations. Its state is that of the loaders of all ranks.
    """

    def __init__(self, loader: Loader, recorder: Recorder, example: torch.Tensor):
        """Wrap the loader. example: as in Trainer.prepare."""
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
        """Yield each batch, and whether it counts; start the clock when the first one is requested."""
        self.recorder.begin()
        if self.recorder.step_in_epoch < len(self.loader):
            with closing(iter(self.loader)) as batches:
                for batch in batches:
                    yield batch, True
        while True:
            yield self.filler, False

    def close(self) -> None:
        """End the running epoch early; safe to call twice."""
        if self.running is not None:
            self.running.close()
        self.running = None

    def state_dict(self) -> dict[str, Any]:
        return {"ranks": gathered(self.loader.state_dict(), self.loader.request.world_size)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state["ranks"][self.loader.request.rank])


class Data(LightningDataModule):
    """The training batches, timed as they arrive, and augmented; gpufeed evaluates outside of Lightning."""

    def __init__(self, batches: Batches, step: TrainStep, recorder: Recorder):
        super().__init__()
        self.batches, self.step, self.recorder = batches, step, recorder

    def train_dataloader(self) -> Batches:
        return self.batches

    def on_before_batch_transfer(self, batch: tuple[Batch, bool], dataloader_idx: int) -> Any:
        self.recorder.arrived(batch[0])
        return batch

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Return the batch, which the loader has already copied to the device."""
        return batch

    def on_after_batch_transfer(self, batch: tuple[Batch, bool], dataloader_idx: int) -> Any:
        """Augment here and not in the step, where Lightning's autocast would round the augment's results."""
        given, counts = batch
        return replace(given, images=self.step.inputs(given.images, given.ids, self.recorder.epoch)), counts


class Module(LightningModule):
    """One training step as in trainer plain: the same model, loss, optimiser and learning rates."""

    def __init__(self, job: TrainJob, step: TrainStep, recorder: Recorder):
        super().__init__()
        self.model = step.model  # so that Lightning finds its parameters
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
        """Return the loss's weight that makes the ranks' mean gradient that of one batch of all their images.

        images: of this rank. The last step of an epoch may have fewer on one rank than on another.
        """
        request = self.job.loader.request
        whole = images_in_step(self.job.loader, self.recorder.step_in_epoch)
        return 1.0 if request.world_size == 1 else images * request.world_size / whole


class Steps(Callback):
    """Times the steps, ends the epochs, and writes checkpoints: Lightning's own with our part in them."""

    def __init__(self, job: TrainJob, recorder: Recorder, batches: Batches):
        self.job, self.recorder, self.batches = job, recorder, batches
        self.check_every = int(job.options.get("check_every", 0))
        self.random: dict[str, torch.Tensor] | None = None
        self.asked = EndRequest(job.device, job.loader.request.world_size)

    def on_train_start(self, trainer: Engine, pl_module: Module) -> None:
        if self.random is not None:  # last, so that the first step is the first to draw from it
            set_random_state(self.random, self.job.device)
            self.random = None

    def on_train_batch_end(
        self, trainer: Engine, pl_module: Module, outputs: Any, batch: Any, batch_idx: int
    ):
        recorder, (given, counts) = self.recorder, batch
        recorder.trained(given if counts else replace(given, labels=given.labels[:0]), pl_module.told)
        recorder.run_is_over()
        trainer.fit_loop.epoch_loop.max_steps = recorder.total  # the end may have moved
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
            trainer.save_checkpoint(checkpoints.path)  # a collective operation; rank 0 writes
        gathered(None, self.job.loader.request.world_size)  # all ranks wait until the file is complete
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
    """Return the file from which a run of Lightning resumes; None unless every rank reads the same step."""
    if job.checkpoints is None:
        return None
    state = job.checkpoints.read("lightning", job)
    steps = gathered(state and state[KEY]["step"], job.loader.request.world_size)
    if steps[0] is None or set(steps) != {steps[0]}:
        return None
    return job.checkpoints.path


LOGGERS = ("pytorch_lightning", "lightning_fabric", "lightning_utilities")


class LightningTrainer(Trainer):
    """Mixed precision, optimisers and rates of trainer plain; a compiled model; no CUDA graphs."""

    def __init__(self, job: TrainJob):
        """Raise GpufeedError for CUDA graphs."""
        super().__init__(job)
        self.recorder = Recorder(job)

    def prepare(self, example: torch.Tensor) -> None:
        job = self.job
        job.model.train()
        if job.channels_last:
            job.model.to(memory_format=torch.channels_last)
        step = TrainStep(job)
        self.precision = precision(step)
        step.context = self.precision.forward_context  # a compiled model is compiled for it
        if job.device.type == "cuda":
            torch.backends.cudnn.benchmark = True  # worth a search, as there are few shapes
        if job.device.type == "cuda" or job.compile:
            warm_up(step, example, job.loader.share % len(example))
        self.module = Module(job, step, self.recorder)
        self.batches = Batches(job.loader, self.recorder, example)
        self.data = Data(self.batches, step, self.recorder)
        synchronise(job.device)

    def run(self, least_s: float = 0.0) -> TrainResult:
        job, steps = self.job, Steps(self.job, self.recorder, self.batches)
        self.recorder.minimum_duration.least_s = least_s
        with quiet(), without_slurm(), heeding(job):
            rank_zero_only.rank = job.loader.request.rank  # of this process, whatever Slurm's variables say
            engine = make_engine(job, self.precision, [steps, *progress_bar(job)])
            found = checkpoint_of(job)
            try:
                engine.fit(self.module, datamodule=self.data, ckpt_path=found, weights_only=True)
            except SystemExit as ended:
                if isinstance(ended.__context__, KeyboardInterrupt):  # Lightning exits with 1 at Ctrl-C
                    raise ended.__context__ from None
                raise
            finally:
                self.batches.close()
                job.model.to(job.device)  # Lightning leaves it on the CPU
        return self.recorder.result()


def precision(step: TrainStep) -> Precision:
    """Return Lightning's plugin for the job's precision; fp32 and tf32 are set by gpufeed.system.devices."""
    job = step.job
    if job.precision not in AUTOCAST:
        return Precision()
    name = {"fp16": "16-mixed", "bf16": "bf16-mixed"}[job.precision]
    return MixedPrecision(name, job.device.type, step.scaler if job.precision == "fp16" else None)


def make_engine(job: TrainJob, plugin: Precision, callbacks: list[Callback]) -> Engine:
    """Return Lightning's Trainer for one rank, without its own logging, checkpoints and validation.

    Raises GpufeedError if its number of ranks differs from the loader's.
    """
    request, kind = job.loader.request, job.device.type
    parts = {"plugins": [plugin, LightningEnvironment()], "devices": 1}
    if request.world_size > 1:
        # gradients are views of the buckets, which saves a copy of each in every step
        strategy = DDPStrategy(cluster_environment=TorchElasticEnvironment(), gradient_as_bucket_view=True)
        here = int(os.environ["LOCAL_WORLD_SIZE"])  # of torchrun
        parts = {"plugins": [plugin], "strategy": strategy, "devices": here}
        parts["num_nodes"] = request.world_size // here
    elif kind == "cuda":
        parts["devices"] = [job.device.index or 0]
    engine = Engine(
        accelerator={"cuda": "gpu"}.get(kind, kind),
        max_epochs=-1,
        max_steps=job.total_steps(),
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=any(isinstance(found, RichProgressBar | TQDMProgressBar) for found in callbacks),
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        **parts,
    )
    if engine.world_size != request.world_size:
        raise GpufeedError(
            f"{engine.world_size} ranks in Lightning",
            f"{request.world_size}, as in the loader",
            "start the training by gpufeed, which starts the ranks itself",
        )
    handle_no_signals(engine)
    return engine


def handle_no_signals(engine: Engine) -> None:
    """Keep Lightning from handling SIGTERM, which we do, as with the other trainers (checkpoints.heeding).

    With several ranks Lightning would ask all of them in every step whether one got it, and wait for the
    device; EndRequest does not wait. torchrun passes the signal on to all ranks.
    """
    engine._signal_connector.register_signal_handlers = lambda: None
    engine.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None


def progress_bar(job: TrainJob) -> list[Callback]:
    """Return a progress bar if the option asks for one; `auto`: if there is a terminal, on rank 0."""
    wanted = job.options.get("progress", "auto")
    wanted = sys.stderr.isatty() and sys.stdout.isatty() if wanted == "auto" else bool(wanted)
    if not wanted or job.loader.request.rank:
        return []
    return [RichProgressBar() if importlib.util.find_spec("rich") else TQDMProgressBar()]


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Lightning's messages inside the block, except warnings that matter here."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    levels = [logger.level for logger in loggers]
    with ExitStack() as undo, warnings.catch_warnings():
        for logger, level in zip(loggers, levels, strict=True):
            undo.callback(logger.setLevel, level)
            logger.setLevel(logging.WARNING)
        # torch's warnings about calls in Lightning itself
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"pytorch_lightning|torch")
        # its advice to use srun, with which each task would run the whole training (check_one_task)
        warnings.filterwarnings("ignore", message="The `srun` command is available")
        yield


@contextmanager
def without_slurm() -> Iterator[None]:
    """Hide Slurm's environment variables inside the block.

    Because of them Lightning would take a job's one task for its only rank, and look for checkpoints of a
    requeued job.
    """
    taken = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("SLURM_")}
    try:
        yield
    finally:
        os.environ.update(taken)
