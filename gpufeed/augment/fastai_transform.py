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

    images: uint8 (N, H, W, 3), or float (N, 3, H, W) where the loader has transformed the samples; ids:
    int64 (N,). No tensor: fastai looks for a transform by type and silently skips one that does not
    fit, so that what was skipped could reach the model. This can not.
    """

    images: torch.Tensor
    ids: torch.Tensor
    epoch: int


class GPUPipelineTransform(Transform):
    """For `batch_tfms`: one of our device augments on the pixels of a batch, and nothing on its labels.

    Behind our loaders the draws are keyed on (seed, epoch, sample id), so that a sample gets the same pixels
    as with any other trainer. Behind fastai's own, which keep no ids, on the seed and on how many images came
    before; there images stay what fastai has, 0..1 and not normalised, so that its other transforms fit.
    batches: how many it has run on. One that it should run on and cannot is an error: fastai would skip it.
    """

    order = 11  # behind fastai's IntToFloatTensor, 10, and before its own augments and Normalize

    def __init__(self, *, augment, split_idx: int = TRAINING):
        """augment: (images, ids, epoch) -> images, or a BatchAugment. By keyword: fastai decorates a lone
        function."""
        super().__init__(split_idx=split_idx)
        self.augment = augment.augment if isinstance(augment, BatchAugment) else augment
        self.batches = self.images = 0

    def __call__(self, batch, **more):
        """more: `split_idx` in a Pipeline, and nothing where DataBlock.summary calls each transform."""
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
        """Return the images without an augment's normalisation, which images of the other split would
        lack.
        """
        mean, std = getattr(self.augment, "mean", None), getattr(self.augment, "std", None)
        if mean is None or std is None:
            return images
        return images.mul(channels(std, images.device)).add_(channels(mean, images.device))


def check_trial(parts: tuple) -> None:
    """Raise GpufeedError for a batch of no split; of one sample it is fastai's trial of a Pipeline."""
    if isinstance(parts[0], torch.Tensor) and parts[0].ndim and len(parts[0]) > 1:
        raise GpufeedError(
            "a batch of a dataset without `split_idx`, on which fastai runs no transform of one split",
            "split_idx 0 for training and 1 for evaluation, as fastai's Datasets have it",
            "make the DataLoaders from a DataBlock or from Datasets, or set `split_idx` of each dataset",
        )


def check_types(parts: tuple) -> None:
    """Raise GpufeedError for a batch that has no images, or labels that would have to move with them."""
    names = ", ".join(type(part).__name__ for part in parts)
    if not any(isinstance(part, Pixels | TensorImage) for part in parts):
        raise GpufeedError(
            f"a batch of {names}, in which GPUPipelineTransform finds no images",
            "a TensorImage, as fastai's ImageBlock gives it",
            "use ImageBlock, or wrap the images of your dataset in fastai's TensorImage",
        )
    if any(isinstance(part, TensorMask | TensorPoint | TensorBBox) for part in parts):
        raise GpufeedError(
            f"a batch of {names} in GPUPipelineTransform, which moves pixels and nothing with them",
            "images and labels of classes",
            "use fastai's own aug_transforms for masks, points and boxes",
        )
