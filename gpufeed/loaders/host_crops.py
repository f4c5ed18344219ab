"""Crop the windows of a recipe on the host, one image after the other."""

from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import interpolate

from gpufeed.augment.random_resized_crop import RandomResizedCrop, Window
from gpufeed.decoders.base import Decoder, bad_file
from gpufeed.decoders.pillow import reduced_size


def decoded_alone(decoder: Decoder, data: bytes, path: Path) -> np.ndarray:
    """Return the pixels of one file, uint8 (H, W, 3); raise GpufeedError where nobody can decode it."""
    decoded = decoder.decode([data])
    if decoded.images[0] is None:
        raise bad_file(path, str(decoded.outcomes[0].reason))
    return decoded.images[0]


class HostCrops:
    """Crops the windows of a recipe on the host, one image after the other.

    If a window has at least twice the sample's sides, the decoder decodes the image at 1/2, 1/4 or 1/8 of its
    size, if it can, as Pillow's `draft` does. Images decoded by torch's libraries are resized by torch, whose
    vector instructions are faster than Pillow.
    """

    def __init__(self, recipe: RandomResizedCrop, decoder: Decoder):
        self.recipe, self.decoder = recipe, decoder

    def of_image(self, image: np.ndarray, sample_id: int, epoch: int) -> np.ndarray:
        """Return the sample of a decoded image, uint8 (size, size, 3)."""
        window = self.recipe.window(sample_id, epoch, *image.shape[:2])
        return self.recipe.cut(image, window)

    def of_file(
        self, data: bytes, path: Path, sample_id: int, epoch: int, size: tuple[int, int]
    ) -> np.ndarray:
        """Return the sample of an encoded file. size: (height, width) in the manifest."""
        window = self.recipe.window(sample_id, epoch, *size)
        factor = reduction(window)
        image = self.decoder.decode_reduced(data, factor) if factor > 1 else None
        if image is not None and image.shape[:2] == reduced_size(*size, factor):
            return self.recipe.cut(image, window, factor)
        image = decoded_alone(self.decoder, data, path)
        if image.shape[:2] != size:
            raise bad_file(path, f"decoded to {image.shape}, the manifest says {size}")
        if self.decoder.by_torch:
            return cut_by_torch(torch.from_numpy(image), window, self.recipe.size)
        return self.recipe.cut(image, window)


def reduction(window: Window) -> int:
    """Return the factor by which an image may be scaled down and its window still has the sample's pixels."""
    least = min(window.height // window.rows, window.width // window.columns)
    return next(factor for factor in (8, 4, 2, 1) if factor <= max(1, least))


def cut_by_torch(image: torch.Tensor, window: Window, size: int) -> np.ndarray:
    """Return what RandomResizedCrop.cut does, by torch, for uint8 (H, W, 3)."""
    part = image[window.top : window.top + window.height, window.left : window.left + window.width]
    part = part.permute(2, 0, 1)[None]  # channels_last, which torch resizes fastest
    sides = (window.rows, window.columns)
    part = interpolate(part, sides, mode="bilinear", align_corners=False, antialias=True)
    row, column = window.first_row, window.first_column
    part = part[0, :, row : row + size, column : column + size].permute(1, 2, 0)
    return (part.flip(1) if window.flip else part).contiguous().numpy()
