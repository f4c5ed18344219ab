"""The trainer `lightning`: PyTorch Lightning around our loader, step and record.

Each process is one rank: gpufeed.training.distributed starts them where a cell has several devices. With
SyncBatchNorm left out, batch normalisation is per device, as it is in most training scripts.
"""

import importlib.util
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from lightning_utilities.core.rank_zero import rank_zero_only
from pytorch_lightning import Trainer as Engine
from pytorch_lightning.callbacks import Callback, RichProgressBar, TQDMProgressBar
from pytorch_lightning.plugins.environments import LightningEnvironment, TorchElasticEnvironment
from pytorch_lightning.plugins.precision import MixedPrecision, Precision
from pytorch_lightning.strategies import DDPStrategy

from gpufeed.core.errors import GpufeedError
from gpufeed.system.devices import AUTOCAST
from gpufeed.system.timing import synchronise
from gpufeed.training.checkpoints import heeding
from gpufeed.training.engines.base import Trainer, TrainJob, TrainResult
from gpufeed.training.engines.lightning_module import Batches, Data, Module, Steps, checkpoint_of
from gpufeed.training.recorder import Recorder
from gpufeed.training.step import TrainStep
from gpufeed.training.warmup import warm_up

LOGGERS = ("pytorch_lightning", "lightning_fabric", "lightning_utilities")


class LightningTrainer(Trainer):
    """Mixed precision, optimisers and rates of trainer plain; a compiled model; no CUDA graphs."""

    def __init__(self, job: TrainJob):
        """Raises GpufeedError for CUDA graphs."""
        super().__init__(job)
        if job.cuda_graphs:
            raise GpufeedError("CUDA graphs with trainer lightning", "none", "choose trainer plain")
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
            torch.backends.cudnn.benchmark = True  # few shapes, so that each is worth a search
        if job.device.type == "cuda" or job.compile:
            warm_up(step, example, job.loader.share % len(example))
        self.module = Module(job, step, self.recorder)
        self.batches = Batches(job.loader, self.recorder, example)
        self.data = Data(self.batches, step, self.recorder)
        synchronise(job.device)

    def run(self, least_s: float = 0.0) -> TrainResult:
        job, steps = self.job, Steps(self.job, self.recorder, self.batches)
        self.recorder.longer.least_s = least_s
        with quiet(), without_slurm(), heeding(job):
            rank_zero_only.rank = job.loader.request.rank  # of this process, whatever Slurm's variables say
            engine = make_engine(job, self.precision, [steps, *progress_bar(job)])
            found = checkpoint_of(job)
            try:
                engine.fit(self.module, datamodule=self.data, ckpt_path=found, weights_only=True)
            finally:
                self.batches.close()
                job.model.to(job.device)  # Lightning leaves it on the CPU
        return self.recorder.result()


def precision(step: TrainStep) -> Precision:
    """Lightning's plugin for the job's precision; fp32 and tf32 are what gpufeed.system.devices has set."""
    job = step.job
    if job.precision not in AUTOCAST:
        return Precision()
    name = {"fp16": "16-mixed", "bf16": "bf16-mixed"}[job.precision]
    return MixedPrecision(name, job.device.type, step.scaler if job.precision == "fp16" else None)


def make_engine(job: TrainJob, plugin: Precision, callbacks: list[Callback]) -> Engine:
    """Lightning's Trainer for one rank: it logs nothing, keeps nothing, and validates nothing by itself.

    Raises GpufeedError if it counts other ranks than the loader does.
    """
    request, kind = job.loader.request, job.device.type
    parts = {"plugins": [plugin, LightningEnvironment()], "devices": 1}
    if request.world_size > 1:
        # a bucket's memory is the gradients': one copy of each less in every step
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
            f"{request.world_size}, as many as share the samples",
            "start the training by gpufeed, which starts the ranks itself",
        )
    handle_no_signals(engine)
    return engine


def handle_no_signals(engine: Engine) -> None:
    """Leaves SIGTERM to us, as with the other trainers (checkpoints.heeding).

    Lightning would finish its step first, and with several ranks ask all of them in every step whether one
    got it, which waits for the device; training/end_request.py does not. torchrun passes the signal on to
    all.
    """
    engine._signal_connector.register_signal_handlers = lambda: None
    engine.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None


def progress_bar(job: TrainJob) -> list[Callback]:
    """A bar where the option asks for one: `auto` is a terminal, of rank 0."""
    wanted = job.options.get("progress", "auto")
    wanted = sys.stderr.isatty() and sys.stdout.isatty() if wanted == "auto" else bool(wanted)
    if not wanted or job.loader.request.rank:
        return []
    return [RichProgressBar() if importlib.util.find_spec("rich") else TQDMProgressBar()]


@contextmanager
def quiet() -> Iterator[None]:
    """Within it Lightning says nothing but warnings, and none about what is meant so here."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    levels = [logger.level for logger in loggers]
    with ExitStack() as undo, warnings.catch_warnings():
        for logger, level in zip(loggers, levels, strict=True):
            undo.callback(logger.setLevel, level)
            logger.setLevel(logging.WARNING)
        # of torch's, about what Lightning itself calls
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"pytorch_lightning|torch")
        # its advice to start the training by srun, which would train the whole once a task (ddp/tasks.py)
        warnings.filterwarnings("ignore", message="The `srun` command is available")
        yield


@contextmanager
def without_slurm() -> Iterator[None]:
    """Within it the environment has none of Slurm's variables.

    By them Lightning would take the one task of a job for its only rank, and look for checkpoints that a
    requeued job left.
    """
    taken = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("SLURM_")}
    try:
        yield
    finally:
        os.environ.update(taken)
