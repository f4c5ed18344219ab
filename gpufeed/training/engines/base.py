"""What a trainer is: the contract of every engine that runs the training loop."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import nn

from gpufeed.loaders.base import Loader, Rows
from gpufeed.training.checkpoints import Checkpoints
from gpufeed.training.distributed.process_group import steps_in_epoch

# (uint8 (N, H, W, 3), ids int64 (N,), epoch) -> float (N, 3, H, W), normalised, on the device.
# Inside a CUDA graph epoch is a 0-dimensional int64 tensor on the device, whose value a replay reads anew.
DeviceAugment = Callable[[torch.Tensor, torch.Tensor, int | torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class TrainJob:
    """Everything that a trainer may know of a cell.

    model stands on the device; loader is open. augment is None where the loader yields normalised
    float images already. options: config/hydra/trainer. Runs `epochs` epochs, or, if steps is given,
    exactly so many batches over as many epochs as they take. judge: asks the model about the evaluation
    split and gives the `accuracy` of a record; None where only the end of the run is asked about. on_epoch:
    called with each epoch's entry in the `epochs` of a record, off the clock, as soon as the epoch is over;
    the accuracy at the end of the run comes into the last entry later. checkpoints: where the state is kept
    from which a killed training goes on; None keeps none.
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
        """Return the batches of the whole run, of the rank that has most."""
        return self.steps if self.steps is not None else self.epochs * steps_in_epoch(self.loader)


@dataclass(frozen=True)
class TrainResult:
    """steps: rows of system.timing.STEP_COLUMNS. epochs: those of a record, then those beyond the plan.

    first_batch_s: seconds on the host's clock from the first request to the first batch. resumed: after how
    many steps each further process took the run up again; empty where one process made it all.
    """

    steps: list[dict]
    epochs: list[dict]
    first_batch_s: float
    resumed: list[int] = field(default_factory=list)


class Trainer(ABC):
    """Made from a job; `prepare` does all that comes before the clock, `run` is what is timed.

    takes_rows: whether its steps may gather their batch by themselves (loaders/base.py, Rows).
    """

    takes_rows: ClassVar[bool] = False

    def __init__(self, job: TrainJob):
        self.job = job

    @abstractmethod
    def prepare(self, example: torch.Tensor | Rows) -> None:
        """Build the optimiser and whatever compiles or warms up; the model's weights stay as they are.

        example: a batch with the shape and dtype of those that will come, on the device; its values do
        not matter. Rows where the trainer takes them and the loader has them.
        """

    @abstractmethod
    def run(self, least_s: float = 0.0) -> TrainResult:
        """Train and return every step and epoch. Raises GpufeedError where the loss is not finite.

        least_s: seconds that the steps after warm-up take together at least. A run that is shorter goes on,
        by whole epochs or, with `steps`, by steps; its model is afterwards as it was at the planned end, and
        the entries of further epochs follow those of the `epochs` that were planned.
        """
