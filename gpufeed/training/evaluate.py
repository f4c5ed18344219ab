"""Evaluate a model on every sample of a split."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from gpufeed.core.errors import GpufeedError
from gpufeed.loaders.base import Loader
from gpufeed.system.devices import autocast
from gpufeed.training.engines.base import DeviceAugment
from gpufeed.training.step import lay_out


@dataclass(frozen=True)
class Answers:
    """One epoch of a split: labels and the predicted classes, int64 (n,), and the mean cross-entropy."""

    split: str
    labels: np.ndarray
    predicted: np.ndarray
    loss: float

    def accuracy(self) -> dict[str, int | float | str]:
        """Return the `accuracy` of a record."""
        correct, images = int((self.labels == self.predicted).sum()), len(self.labels)
        return {
            "split": self.split,
            "images": images,
            "correct": correct,
            "top1": correct / images,
            "loss": self.loss,
        }


@torch.inference_mode()
def answers(
    model: nn.Module,
    loader: Loader,
    normalise: DeviceAugment,
    device: torch.device,
    precision: str,
    channels_last: bool = False,
) -> Answers:
    """Run the model on one epoch of an open loader; leave it in evaluation mode.

    Raises GpufeedError if the loader did not yield as many samples as its split has, or if the loss is not
    finite.
    """
    model.eval()
    expected, labels, predicted = loader.share, [], []
    # float32 on the device (mps has no float64): at a million images its error is below 1e-3 of the mean
    loss = torch.zeros((), device=device)
    for batch in loader:
        inputs = lay_out(normalise(batch.images, batch.ids, 0), channels_last)  # float (N, 3, H, W)
        with autocast(device, precision):
            logits = model(inputs).float()  # (N, classes)
        loss += F.cross_entropy(logits, batch.labels, reduction="sum")
        # a copy, since a loader may reuse the memory of a batch
        labels.append(batch.labels.clone())
        predicted.append(logits.argmax(1))
    images = sum(map(len, labels))
    if images != expected:
        raise GpufeedError(
            f"{images} images from {type(loader).__name__} in the evaluation",
            f"each of the {expected} of split {loader.request.split!r} once",
            "choose another loader and report this one",
        )
    mean_loss = loss.item() / images
    if not torch.isfinite(loss):
        raise GpufeedError(f"evaluation loss {mean_loss}", "a finite one", "lower trainer.learning_rate")
    return Answers(
        loader.request.split, torch.cat(labels).cpu().numpy(), torch.cat(predicted).cpu().numpy(), mean_loss
    )
