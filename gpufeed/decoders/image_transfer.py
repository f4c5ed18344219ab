"""Decoded images between host and device: one copy a call, whatever their sizes."""

from collections.abc import Sequence

import numpy as np
import torch

from gpufeed.decoders.base import split


def to_device(images: Sequence[np.ndarray | None], device: torch.device) -> list[torch.Tensor | None]:
    """uint8 (H, W, 3) arrays as tensors on `device`, for its current stream; None stays None."""
    if device.type == "cpu":
        return [None if image is None else torch.from_numpy(writable(image)) for image in images]
    present = [image for image in images if image is not None]
    if not present:
        return list(images)
    on_cuda = device.type == "cuda"  # there torch gives the page-locked memory to others after the copy
    flat = torch.empty(sum(image.size for image in present), dtype=torch.uint8, pin_memory=on_cuda)
    np.concatenate([image.reshape(-1) for image in present], out=flat.numpy())
    pieces = split(flat.to(device, non_blocking=on_cuda), [image.shape for image in present])
    return [None if image is None else next(pieces) for image in images]


def to_host(images: Sequence[torch.Tensor | None]) -> list[np.ndarray | None]:
    """uint8 (H, W, 3) tensors of one device as arrays; waits for the device's current stream."""
    present = [image for image in images if image is not None]
    if not present:
        return list(images)
    flat = torch.cat([image.reshape(-1) for image in present]).cpu()  # synchronises
    pieces = split(flat.numpy(), [tuple(image.shape) for image in present])
    return [None if image is None else next(pieces) for image in images]


def together(images: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Copies of images, (H, W, 3) each of any strides, in one flat tensor; None stays None.

    On a GPU one kernel copies up to 64 images or more, where a copy of each would be a launch of each.
    """
    present = [image for image in images if image is not None]
    if not present:
        return list(images)
    # rows are pixels, in which all images are alike; of channels that lie apart, too, that is a view
    flat = torch.cat([image.flatten(0, 1) for image in present]).reshape(-1)
    pieces = split(flat, [image.shape for image in present])
    return [None if image is None else next(pieces) for image in images]


def writable(image: np.ndarray) -> np.ndarray:
    """The array itself, or a copy if it is read-only, as torch has no read-only tensors."""
    return np.ascontiguousarray(image if image.flags.writeable else image.copy())
