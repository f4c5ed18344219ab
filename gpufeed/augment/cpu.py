"""The augment `cpu`: crop and flip of one sample by torchvision, in the process that decoded it."""

from typing import Any, ClassVar

import torch
from PIL import Image
from torchvision.transforms import functional as v1
from torchvision.transforms.v2 import functional as F

from gpufeed.augment.base import CROP_FLIP_DEFAULTS, Augment
from gpufeed.system import random_draws


class CpuAugment(Augment):
    """A LoadRequest.sample_transform with the draws of TorchAugment, so that both give the same pixels."""

    where = "sample"
    defaults: ClassVar[dict[str, Any]] = {**CROP_FLIP_DEFAULTS, "pil": False}

    def __call__(self, image: torch.Tensor, sample_id: int, epoch: int) -> torch.Tensor:
        """Return float32 (3, H, W) for an image, uint8 (H, W, 3)."""
        padding, (height, width) = self.options["crop_padding"], image.shape[:2]
        state = random_draws.sample_state(self.seed, epoch, sample_id)
        top, left = (
            random_draws.below(random_draws.draw(state, i), 2 * padding + 1) if padding else 0 for i in (0, 1)
        )
        flip = random_draws.chance(random_draws.draw(state, 2), self.options["flip_probability"])
        if self.options["pil"]:
            return self._by_pil(Image.fromarray(image.numpy()), top, left, flip)
        image = image.permute(2, 0, 1)  # (3, H, W)
        # padded first: torchvision 0.25's crop returns a wrong size for windows wholly outside the image
        image = F.crop(F.pad(image, [padding]), top, left, height, width)
        if flip:
            image = F.horizontal_flip(image)
        return F.normalize(F.to_dtype(image, torch.float32, scale=True), list(self.mean), list(self.std))

    def _by_pil(self, image: Image.Image, top: int, left: int, flip: bool) -> torch.Tensor:
        """Do the same by torchvision's functions for PIL images."""
        if padding := self.options["crop_padding"]:
            image = v1.crop(v1.pad(image, [padding]), top, left, image.height, image.width)
        if flip:
            image = v1.hflip(image)
        return v1.normalize(v1.to_tensor(image), list(self.mean), list(self.std))
