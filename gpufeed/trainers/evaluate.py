"""Accuracy of a model on a split."""

import torch
from torch import nn
from torch.nn import functional as F

from gpufeed.devices import autocast
from gpufeed.errors import GpufeedError
from gpufeed.loaders.base import Loader
from gpufeed.trainers.base import DeviceAugment
from gpufeed.trainers.step import lay_out


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    loader: Loader,
    normalise: DeviceAugment,
    device: torch.device,
    precision: str,
    channels_last: bool = False,
) -> dict[str, int | float | str]:
    """The `accuracy` of a record over one epoch of an open loader; leaves the model in evaluation mode.

    Raises GpufeedError if the loader did not give every sample of its split once, or if the loss is
    not finite.
    """
    model.eval()
    images, expected = 0, len(loader.order())
    correct = torch.zeros((), dtype=torch.int64, device=device)
    # float32 on the device (mps has no float64): at a million images its error is below 1e-3 of the mean
    loss = torch.zeros((), device=device)
    for batch in loader:
        inputs = lay_out(normalise(batch.images, batch.ids, 0), channels_last)  # float (N, 3, H, W)
        with autocast(device, precision):
            logits = model(inputs).float()  # (N, classes)
        correct += (logits.argmax(1) == batch.labels).sum()
        loss += F.cross_entropy(logits, batch.labels, reduction="sum")
        images += len(batch.labels)
    if images != expected:
        raise GpufeedError(
            f"{images} images from {type(loader).__name__} in the evaluation",
            f"each of the {expected} of split {loader.request.split!r} once",
            "choose another loader and report this one",
        )
    mean_loss = loss.item() / images
    if not torch.isfinite(loss):
        raise GpufeedError(f"evaluation loss {mean_loss}", "a finite one", "lower trainer.learning_rate")
    return {
        "split": loader.request.split,
        "images": images,
        "correct": int(correct),
        "top1": int(correct) / images,
        "loss": mean_loss,
    }
