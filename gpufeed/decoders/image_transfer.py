"""Decoded images between host and device: one copy a call, whatever their sizes.

Imports no torch by itself: a decoding process has none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch


def to_device(images: Sequence[np.ndarray | None], device: torch.device) -> list[torch.Tensor | None]:
    """uint8 (H, W, 3) arrays as tensors on `device`, for its current stream; None stays None."""
    import torch

    if device.type == "cpu":
        return [None if image is None else torch.from_numpy(writable(image)) for image in images]
    present = [image.reshape(-1) for image in images if image is not None]
    if not present:
        return list(images)
    on_cuda = device.type == "cuda"  # torch uses this page-locked memory again only after the copy
    flat = torch.empty(sum(map(len, present)), dtype=torch.uint8, pin_memory=on_cuda)
    np.concatenate(present, out=flat.numpy())
    return in_place(images, flat.to(device, non_blocking=on_cuda))


def to_host(images: Sequence[torch.Tensor | None]) -> list[np.ndarray | None]:
    """uint8 (H, W, 3) tensors of one device as arrays; waits for the device's current stream."""
    return in_place(images, joined(images).cpu().numpy())  # synchronises


def together(images: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Copies of images, (H, W, 3) each of any strides, in one flat tensor; None stays None."""
    return in_place(images, joined(images))


def joined(images: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """Their bytes, one image behind the other.

    On a GPU one kernel copies 64 images or more, where a copy of each would be a launch of each.
    """
    import torch

    # rows are pixels, in which all images are alike; of channels that lie apart, too, that is a view
    present = [image.flatten(0, 1) for image in images if image is not None]
    return torch.cat(present).reshape(-1) if present else torch.empty(0, dtype=torch.uint8)


def in_place(images: Sequence[Any | None], flat: Any) -> list[Any | None]:
    """Views of a one-dimensional array or tensor in place of the images that there are, in order."""
    views = split(flat, [image.shape for image in images if image is not None])
    return [None if image is None else next(views) for image in images]


def split(flat: Any, shapes: Iterable[tuple[int, ...]]) -> Iterator[Any]:
    """Views of a one-dimensional array or tensor, one a shape, in order."""
    start = 0
    for shape in shapes:
        end = start + math.prod(shape)
        yield flat[start:end].reshape(tuple(shape))
        start = end


def writable(image: np.ndarray) -> np.ndarray:
    """The array itself, or a copy if it is read-only, as torch has no read-only tensors."""
    return np.ascontiguousarray(image if image.flags.writeable else image.copy())
