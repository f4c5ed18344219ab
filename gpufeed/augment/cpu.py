"""The same crop and flip on one sample, by torchvision, where it was decoded."""

from collections.abc import Sequence
from typing import Any

import torch
from torchvision.transforms.v2 import functional as F

from gpufeed.augment import draws
from gpufeed.augment.base import CROP_FLIP_DEFAULTS, Augment, check_crop_flip


class CpuAugment(Augment):
    """A LoadRequest.sample_transform; draws as TorchAugment does, so that both give the same pixels."""

    where = "sample"
    defaults = CROP_FLIP_DEFAULTS

    def __init__(self, mean: Sequence[float], std: Sequence[float], seed: int, options: dict[str, Any]):
        super().__init__(mean, std, seed, options)
        check_crop_flip(self.options)

    def __call__(self, image: torch.Tensor, sample_id: int, epoch: int) -> torch.Tensor:
        """image: uint8 (H, W, 3); returns float32 (3, H, W)."""
        padding = self.options["crop_padding"]
        image = image.permute(2, 0, 1)  # (3, H, W)
        height, width = image.shape[1:]
        state = draws.sample_state(self.seed, epoch, sample_id)
        top = draws.below(draws.draw(state, 0), 2 * padding + 1)
        left = draws.below(draws.draw(state, 1), 2 * padding + 1)
        # padded first: torchvision 0.25's crop gives a wrong size for windows wholly outside the image
        image = F.crop(F.pad(image, [padding]), top, left, height, width)
        if draws.chance(draws.draw(state, 2), self.options["flip_probability"]):
            image = F.horizontal_flip(image)
        return F.normalize(F.to_dtype(image, torch.float32, scale=True), list(self.mean), list(self.std))
