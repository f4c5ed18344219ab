"""An augment by its name, for batches of the user's own loop."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gpufeed.augment.base import DeviceAugment
from gpufeed.core.config import check_dict, check_hyper, read_hyper
from gpufeed.core.errors import GpufeedError, require_known
from gpufeed.core.registry import AUGMENTS, fetch

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean, standard deviation


class BatchAugment:
    """Called with uint8 (N, 3, H, W), it returns normalised floats of this shape, channels last in memory.

    augment: the augment that it calls. Draws depend on the seed and the number of images before.
    """

    def __init__(self, augment: DeviceAugment):
        self.augment, self.images = augment, 0

    @torch.no_grad()
    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        if images.ndim != 4 or images.shape[1] != 3:
            raise GpufeedError(
                f"images of shape {tuple(images.shape)}",
                "(N, 3, H, W)",
                "convert to RGB and permute channels to the second place",
            )
        ids = torch.arange(self.images, self.images + len(images), device=images.device)
        self.images += len(images)
        return self.augment(images.permute(0, 2, 3, 1).contiguous(), ids, 0)


def batch_augment(
    name: str = "torch",
    *,
    mean: Sequence[float] = IMAGENET[0],
    std: Sequence[float] = IMAGENET[1],
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> BatchAugment:
    """Return an augment of whole batches: crop, flip, and what `options` ask for, on the images' device.

    name: `none` (only normalises), `torch`, or on a CUDA GPU `chain` or `fused`, one kernel for all steps.
    options: those of config/hydra/augment that differ, such as {"brightness": 0.2, "dtype": "bfloat16"}.
    Raises GpufeedError for an unknown name or option, and Skip if this node lacks a package or the GPU.
    """
    choices = [one for one, entry in AUGMENTS.items() if entry.where == "device"]
    require_known("augment", name, choices, "gpufeed.batch_augment")
    check_dict("options", options, "gpufeed.batch_augment", '{"brightness": 0.2}')
    found = {**read_hyper("augment", name), **(options or {})}
    check_hyper("augment", name, found, "gpufeed.batch_augment")
    return BatchAugment(fetch("augment", name)(mean, std, seed, found))
