"""Our augments as a fastai batch transform."""

from dataclasses import dataclass

import torch
from fasttransform import Transform

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

    The draws are keyed on (seed, epoch, sample id), so that a sample gets the same pixels as with any
    other trainer. batches: how many it has run on.
    """

    def __init__(self, *, augment, split_idx: int = TRAINING):
        """augment: (images, ids, epoch) -> images. By keyword: fastai decorates a lone function."""
        super().__init__(split_idx=split_idx)
        self.augment = augment
        self.batches = 0

    def encodes(self, x: Pixels) -> torch.Tensor:
        """The augmented images, float (N, 3, H, W)."""
        self.batches += 1
        return self.augment(x.images, x.ids, x.epoch)
