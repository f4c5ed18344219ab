"""The base class of trainers, the engines that run the training loop."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import nn

from gpufeed.loaders.base import DeferredGather, Loader
from gpufeed.training.checkpoints import Checkpoints
from gpufeed.training.distributed.process_group import steps_in_epoch

# (uint8 (N, H, W, 3), ids int64 (N,), epoch) -> float (N, 3, H, W), normalised, on the device.
# Inside a CUDA graph epoch is a 0-dimensional int64 tensor on the device, which each replay reads.
DeviceAugment = Callable[[torch.Tensor, torch.Tensor, int | torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class TrainJob:
    """All that a trainer needs to know of a cell.

    model: on the device; loader: open. augment: None if the loader yields normalised float images. options:
    config/hydra/trainer. epochs, steps: the length of the run; if steps is set, exactly so many batches over
    as many epochs as they take. judge: evaluates the model and returns the `accuracy` of a record; None to
    evaluate at the end of the run only. on_epoch: called with each epoch's entry in the `epochs` of a record,
    off the clock, as soon as the epoch is over; the accuracy at the end of the run is added to the last entry
    later. checkpoints: where state is kept to resume a killed training; None keeps none.
    """

    model: nn.Module
    loader: Loader
    augment: DeviceAugment | None
    device: torch.device
    precision: str  # fp32 | tf32 | fp16 | bf16
    options: Mapping[str, Any]
    epochs: int = 1
    steps: int | None = None
    channels_last: bool = False
    cuda_graphs: bool = False
    compile: bool = False  # the model runs through torch.compile
    synchronise: str = "epoch"  # epoch | step
    judge: Callable[[], dict] | None = None
    on_epoch: Callable[[dict], None] | None = None
    checkpoints: Checkpoints | None = None

    def total_steps(self) -> int:
        """Return the number of batches of the whole run, on the rank that has most."""
        return self.steps if self.steps is not None else self.epochs * steps_in_epoch(self.loader)


@dataclass(frozen=True)
class TrainResult:
    """The steps and epochs of a run.

    steps: rows of system.timing.STEP_COLUMNS. epochs: those of a record, then those beyond the planned end.
    first_batch_s: seconds on the host's clock from the first request to the first batch. resumed: the step
    after which each further process resumed the run; empty if one process made it all.
    """

    steps: list[dict]
    epochs: list[dict]
    first_batch_s: float
    resumed: list[int] = field(default_factory=list)


class Trainer(ABC):
    """A training loop. `prepare` does all that precedes the clock, and `run` is timed.

    takes_rows: whether its steps may gather batches themselves (loaders/base.py, DeferredGather).
    """

    takes_rows: ClassVar[bool] = False

    def __init__(self, job: TrainJob):
        self.job = job

    @abstractmethod
    def prepare(self, example: torch.Tensor | DeferredGather) -> None:
        """Build the optimiser, compile and warm up; the model's weights stay unchanged.

        example: a batch with the shape and dtype of the coming ones, on the device, with any values;
        DeferredGather if the trainer takes them and the loader yields them.
        """

    @abstractmethod
    def run(self, least_s: float = 0.0) -> TrainResult:
        """Train; return every step and epoch. Raises GpufeedError if the loss is not finite.

        least_s: the least duration in seconds of all steps after warm-up. A shorter run continues, by whole
        epochs or, with `steps`, by steps. Its model is afterwards restored to the planned end, and the
        entries of further epochs follow those of the planned `epochs`.
        """
