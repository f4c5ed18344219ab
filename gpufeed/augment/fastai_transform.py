"""Our augments as a fastai batch transform."""

from dataclasses import dataclass

import torch
from fastai.torch_core import TensorImage, TensorMask
from fastai.vision.core import TensorBBox, TensorPoint
from fasttransform import Transform

from gpufeed.augment.base import channels
from gpufeed.augment.on_batches import BatchAugment
from gpufeed.core.errors import GpufeedError

TRAINING, EVALUATION = 0, 1  # fastai's split_idx: which of its data a transform runs on


@dataclass(frozen=True, eq=False)
class Pixels:
    """The input of a batch before its transform.

    images: uint8 (N, H, W, 3), or float (N, 3, H, W) if the loader has transformed the samples; ids: int64
    (N,). It is no tensor on purpose: fastai silently skips a transform that does not fit the type of its
    input, and the model would accept an untransformed tensor.
    """

    images: torch.Tensor
    ids: torch.Tensor
    epoch: int


class GPUPipelineTransform(Transform):
    """For `batch_tfms`: one of our device augments on the pixels of a batch; labels stay as they are.

    With our loaders the draws depend on (seed, epoch, sample id), so that a sample has the same pixels as
    with any other trainer. With fastai's loaders, which keep no ids, they depend on the seed and the number
    of images before; images then stay in 0..1 and not normalised, as fastai's other transforms expect.
    batches: how many it has run on. A batch that does not fit is an error, where fastai would skip the
    transform.
    """

    order = 11  # after fastai's IntToFloatTensor, 10, and before its own augments and Normalize

    def __init__(self, *, augment, split_idx: int = TRAINING):
        """Wrap `augment`: (images, ids, epoch) -> images, or a BatchAugment.

        By keyword alone, since fastai takes a single positional function for a decorated one.
        """
        super().__init__(split_idx=split_idx)
        self.augment = augment.augment if isinstance(augment, BatchAugment) else augment
        self.batches = self.images = 0

    def __call__(self, batch, **more):
        """Check the batch, then transform it. more: `split_idx` in a Pipeline, none in DataBlock.summary."""
        parts = batch if isinstance(batch, tuple) else (batch,)
        if self.split_idx in (None, more.get("split_idx")):
            check_types(parts)
        elif "split_idx" in more and more["split_idx"] is None:
            check_trial(parts)
        return super().__call__(batch, **more)

    def encodes(self, x: Pixels) -> torch.Tensor:
        """Return the augmented images, float (N, 3, H, W)."""
        self.batches += 1
        return self.augment(x.images, x.ids, x.epoch)

    def encodes(self, x: TensorImage) -> TensorImage:  # noqa: F811 - fastai chooses one by its type
        """Return the augmented images, float (N, 3, H, W), 0..1; x: uint8 or float 0..1, (N, 3, H, W)."""
        if x.ndim != 4 or x.shape[1] != 3:
            raise GpufeedError(
                f"images of shape {tuple(x.shape)} in GPUPipelineTransform",
                "(N, 3, height, width)",
                "use it in batch_tfms, on images in colour: PILImage, not PILImageBW",
            )
        pixels = x.as_subclass(torch.Tensor)
        if pixels.is_floating_point():
            pixels = pixels.mul(255).round_().clamp_(0, 255).to(torch.uint8)
        pixels = pixels.permute(0, 2, 3, 1).contiguous()
        ids = torch.arange(self.images, self.images + len(pixels), device=pixels.device)
        self.batches, self.images = self.batches + 1, self.images + len(pixels)
        return TensorImage(self.as_it_came(self.augment(pixels, ids, 0)))

    def as_it_came(self, images: torch.Tensor) -> torch.Tensor:
        """Undo the augment's normalisation, which images of the other split would lack."""
        mean, std = getattr(self.augment, "mean", None), getattr(self.augment, "std", None)
        if mean is None or std is None:
            return images
        return images.mul(channels(std, images.device)).add_(channels(mean, images.device))


def check_trial(parts: tuple) -> None:
    """Raise GpufeedError for a batch of no split, but not for fastai's single sample to try a Pipeline."""
    if isinstance(parts[0], torch.Tensor) and parts[0].ndim and len(parts[0]) > 1:
        raise GpufeedError(
            "a batch of a dataset without `split_idx`, for which fastai skips transforms of a single split",
            "split_idx 0 for training and 1 for evaluation, as in fastai's Datasets",
            "make the DataLoaders from a DataBlock or from Datasets, or set `split_idx` of each dataset",
        )


def check_types(parts: tuple) -> None:
    """Raise GpufeedError for a batch without images, or with labels that would have to move with them."""
    names = ", ".join(type(part).__name__ for part in parts)
    if not any(isinstance(part, Pixels | TensorImage) for part in parts):
        raise GpufeedError(
            f"a batch of {names}, in which GPUPipelineTransform finds no images",
            "a TensorImage, as fastai's ImageBlock makes it",
            "use ImageBlock, or wrap the images of your dataset in fastai's TensorImage",
        )
    if any(isinstance(part, TensorMask | TensorPoint | TensorBBox) for part in parts):
        raise GpufeedError(
            f"a batch of {names} in GPUPipelineTransform, which moves pixels alone",
            "images and class labels",
            "use fastai's own aug_transforms for masks, points and boxes",
        )
