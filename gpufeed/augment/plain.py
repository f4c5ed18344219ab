"""No augmentation: pixels are only normalised, on the device."""

import torch

from gpufeed.augment.base import DeviceAugment


class Normalise(DeviceAugment):
    """uint8 to float, divided by 255, less the mean, divided by the standard deviation."""

    def __call__(self, images: torch.Tensor, ids: torch.Tensor, epoch: int | torch.Tensor) -> torch.Tensor:
        """images: uint8 (N, H, W, 3); returns float32 (N, 3, H, W). ids and epoch make no difference."""
        return self.normalise(images)
