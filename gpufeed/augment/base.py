"""The base class of augments: uint8 pixels in, normalised floats out, the same wherever a sample is
augmented.
"""

from abc import ABC
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from gpufeed.core.errors import GpufeedError, Skip, require_known


class Augment(ABC):
    """Made from the dataset's mean and std (RGB, of pixels in 0..1), the cell's seed and its options.

    where: "device" augments are called with a whole batch on the device, `augment(images, ids, epoch)`.
    "sample" augments are a LoadRequest.sample_transform, `augment(image, id, epoch)`. "loader" augments are
    one that the loader builds into its own pipeline.
    """

    where: ClassVar[str]
    defaults: ClassVar[dict[str, Any]] = {}

    def __init__(self, mean: Sequence[float], std: Sequence[float], seed: int, options: dict[str, Any]):
        for name in options:
            require_known("augment option", name, self.defaults, where="config/hydra/augment")
        self.mean, self.std, self.seed = tuple(mean), tuple(std), seed
        self.options = {**self.defaults, **options}

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width of a sample from an image of (height, width) pixels."""
        return height, width


class DeviceAugment(Augment):
    """An augment of whole batches.

    `epoch` may be a 0-d int64 tensor on the device, so that a captured CUDA graph sees it change.
    Nothing here waits for the device or copies from the host, except the first call on a device, which makes
    constants there: call it once before a capture.
    """

    where = "device"
    gathers: ClassVar[bool] = (
        False  # has `gather(store, rows, ids, epoch)`, the same as a call on store[rows]
    )

    def __init__(self, mean: Sequence[float], std: Sequence[float], seed: int, options: dict[str, Any]):
        super().__init__(mean, std, seed, options)
        self._constants: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}

    def normalise(self, images: torch.Tensor) -> torch.Tensor:
        """Convert uint8 (N, H, W, 3) to float32 (N, 3, H, W) in channels_last, (pixel / 255 - mean) / std."""
        scale, shift = self._scale_and_shift(images.device)
        return images.permute(0, 3, 1, 2).to(torch.float32).mul(scale).add_(shift)

    def _scale_and_shift(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return 1 / (255 std) and -mean / std, float32 (3, 1, 1)."""
        if device not in self._constants:
            scale = [1 / (255 * std) for std in self.std]
            shift = [-mean / std for mean, std in zip(self.mean, self.std, strict=True)]
            self._constants[device] = (channels(scale, device), channels(shift, device))
        return self._constants[device]


def channels(values: list[float], device: torch.device) -> torch.Tensor:
    """Return float32 (3, 1, 1) on the device, filled there, since torch.tensor would wait for a copy."""
    return torch.stack([torch.full((1, 1), value, device=device) for value in values])


CROP_FLIP_DEFAULTS = {"crop_padding": 4, "flip_probability": 0.5}


def check_batch(images: torch.Tensor, ids: torch.Tensor) -> None:
    """Raise GpufeedError unless images is uint8 (N, H, W, 3) and ids int64 (N,) beside it, with N > 0."""
    if images.dtype != torch.uint8:
        raise GpufeedError(
            f"images of {images.dtype}", "torch.uint8", "pass the decoded pixels, before they are normalised"
        )
    if images.ndim != 4 or images.shape[3] != 3:
        raise GpufeedError(
            f"images of shape {tuple(images.shape)}",
            "(N, H, W, 3)",
            "convert to RGB and permute channels to the end",
        )
    if 0 in images.shape:
        raise GpufeedError(
            f"an empty batch, shape {tuple(images.shape)}", "at least one image", "leave empty batches out"
        )
    if ids.dtype != torch.int64 or ids.shape != images.shape[:1]:
        raise GpufeedError(
            f"sample ids {ids.dtype} {tuple(ids.shape)} for {len(images)} images",
            f"torch.int64 ({len(images)},)",
            "pass one id for each image",
        )
    if ids.device != images.device:
        raise GpufeedError(
            f"sample ids on {ids.device}, images on {images.device}", "one device", "move the ids"
        )


def check_addresses(*tensors: torch.Tensor) -> None:
    """Raise GpufeedError unless each tensor is contiguous and on the current CUDA device."""
    for tensor in tensors:
        if tensor.device.type != "cuda":
            raise GpufeedError(
                f"a tensor on {tensor.device}", "a tensor on a CUDA GPU", "move it, or use augment torch"
            )
        if tensor.device.index != torch.cuda.current_device():
            raise GpufeedError(
                f"a tensor on {tensor.device}, while cuda:{torch.cuda.current_device()} is current",
                "a tensor on the current device",
                "work inside `with torch.cuda.device(...)`",
            )
        if not tensor.is_contiguous():
            raise GpufeedError(
                f"a tensor of shape {tuple(tensor.shape)} with strides {tensor.stride()}",
                "contiguous memory",
                "call .contiguous()",
            )


def require_cuda(name: str) -> None:
    """Raise Skip on a node without a CUDA GPU."""
    if not torch.cuda.is_available():
        raise Skip(
            f"Augment {name} runs its own kernels on a CUDA GPU, and torch {torch.__version__} finds none on "
            "this node."
        )


class Normalise(DeviceAugment):
    """uint8 to float, divided by 255, less the mean, divided by the standard deviation."""

    def __call__(self, images: torch.Tensor, ids: torch.Tensor, epoch: int | torch.Tensor) -> torch.Tensor:
        """Return float32 (N, 3, H, W) for images, uint8 (N, H, W, 3). ids and epoch make no difference."""
        return self.normalise(images)
