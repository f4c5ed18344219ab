"""One training step: augment, forward, backward, optimiser. It queues work and never waits for the device."""

from functools import partial

import torch
from torch import nn

from gpufeed.loaders.base import DeferredGather
from gpufeed.native.jit_toolchain import MAX_AUTOTUNE
from gpufeed.system.devices import autocast
from gpufeed.training.engines.base import TrainJob
from gpufeed.training.optimisers import make_optimiser


def lay_out(images: torch.Tensor, channels_last: bool) -> torch.Tensor:
    """Return float (N, C, H, W) in the memory format of the convolutions."""
    return images.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


class TrainStep:
    """Called with a batch, trains on it and returns the loss: float32, 0-dimensional, on the device."""

    def __init__(self, job: TrainJob):
        self.job = job
        # two shapes an epoch, each compiled statically: code for any batch size would be slower for both
        options = MAX_AUTOTUNE if job.options.get("max_autotune") else None
        self.model = torch.compile(job.model, dynamic=False, options=options) if job.compile else job.model
        self.optimiser = make_optimiser(job.model.parameters(), job.options, job.device, job.cuda_graphs)
        self.scaler = torch.amp.GradScaler(job.device.type, enabled=job.precision == "fp16")
        self.criterion = nn.CrossEntropyLoss(label_smoothing=float(job.options["label_smoothing"]))
        self.context = partial(autocast, job.device, job.precision)  # for the forward pass

    def __call__(
        self,
        images: torch.Tensor | DeferredGather,
        labels: torch.Tensor,
        ids: torch.Tensor,
        epoch: int | torch.Tensor,
    ) -> torch.Tensor:
        """Train on a batch; return the loss.

        images: uint8 (N, H, W, 3), or float (N, 3, H, W) without an augment, or DeferredGather of a store if
        the augment gathers them. labels, ids: int64 (N,).
        """
        self.optimiser.zero_grad(set_to_none=True)
        inputs = self.inputs(images, ids, epoch)
        with self.context():
            loss = self.loss(inputs, labels)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimiser)
        self.scaler.update()
        return loss.detach()

    def inputs(
        self, images: torch.Tensor | DeferredGather, ids: torch.Tensor, epoch: int | torch.Tensor
    ) -> torch.Tensor:
        """Return the model's input: the augmented images, float (N, 3, H, W)."""
        if isinstance(images, DeferredGather):
            return self.job.augment.gather(images.store, images.rows, ids, epoch)
        return images if self.job.augment is None else self.job.augment(images, ids, epoch)

    def loss(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a batch, float32, 0-dimensional; called within `context`."""
        logits = self.model(lay_out(inputs, self.job.channels_last))  # (N, classes)
        return self.criterion(logits.float(), labels)


class Snapshot:
    """The state of model, optimiser and scaler, to be restored in place after a warm-up.

    In place, since a CUDA graph reads the tensors that it was captured with. It is taken before the first
    step, when the optimiser's state is empty. It is restored as zeros, with which SGD, Adam and AdamW make
    the same next step as with an empty state.
    """

    def __init__(self, step: TrainStep):
        self.step = step
        self.model = {name: tensor.clone() for name, tensor in step.job.model.state_dict().items()}
        self.scaler = step.scaler.state_dict()

    @torch.no_grad()
    def put_back(self) -> None:
        for name, tensor in self.step.job.model.state_dict().items():
            tensor.copy_(self.model[name])
        for state in self.step.optimiser.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    value.zero_()
        if self.step.scaler.is_enabled():
            self.step.scaler.load_state_dict(self.scaler)
        self.step.optimiser.zero_grad(set_to_none=True)
