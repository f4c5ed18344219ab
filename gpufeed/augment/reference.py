"""The reference augment in plain torch: random crop with padding and horizontal flip of a whole batch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import pad

from gpufeed.augment import draws
from gpufeed.augment.base import CROP_FLIP_DEFAULTS, DeviceAugment, check_crop_flip


class TorchAugment(DeviceAugment):
    """Crop and flip drawn from (seed, epoch, id) on the device: batch size and order do not matter."""

    defaults = CROP_FLIP_DEFAULTS

    def __init__(self, mean: Sequence[float], std: Sequence[float], seed: int, options: dict[str, Any]):
        super().__init__(mean, std, seed, options)
        check_crop_flip(self.options)

    def __call__(self, images: torch.Tensor, ids: torch.Tensor, epoch: int | torch.Tensor) -> torch.Tensor:
        """images: uint8 (N, H, W, 3), ids: int64 (N,), both on the device; returns float32 (N, 3, H, W)."""
        padding = self.options["crop_padding"]
        height, width = images.shape[1:3]
        top, left, flip = self.crops(ids, epoch)
        y = torch.arange(height, device=images.device)
        x = torch.arange(width, device=images.device)
        rows = top[:, None] + y  # (N, H)
        columns = left[:, None] + torch.where(flip[:, None], width - 1 - x, x)  # (N, W)
        padded = pad(images, (0, 0, padding, padding, padding, padding))  # (N, H + 2p, W + 2p, 3), black
        sample = torch.arange(len(images), device=images.device)[:, None, None]
        return self.normalise(padded[sample, rows[:, :, None], columns[:, None, :]])

    def crops(
        self, ids: torch.Tensor, epoch: int | torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Top and left corner in the padded image, int64 (N,), and whether to flip, bool (N,)."""
        which = torch.arange(3, device=ids.device)[:, None]
        numbers = draws.draw(draws.sample_state(self.seed, epoch, ids), which)  # (3, N)
        places = 2 * self.options["crop_padding"] + 1
        top, left = draws.below(numbers[:2], places)
        return top, left, draws.chance(numbers[2], self.options["flip_probability"])
