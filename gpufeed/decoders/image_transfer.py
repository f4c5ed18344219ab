"""Copy decoded images between host and device: one copy a call, whatever their sizes.

torch is imported inside functions, since decoding processes do without it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch


def to_device(images: Sequence[np.ndarray | None], device: torch.device) -> list[torch.Tensor | None]:
    """Return uint8 (H, W, 3) arrays as tensors on `device`, for its current stream; None stays None."""
    import torch

    if device.type == "cpu":
        return [None if image is None else torch.from_numpy(writable(image)) for image in images]
    present = [image.reshape(-1) for image in images if image is not None]
    if not present:
        return list(images)
    on_cuda = device.type == "cuda"  # torch reuses this page-locked memory only after the copy
    flat = torch.empty(sum(map(len, present)), dtype=torch.uint8, pin_memory=on_cuda)
    np.concatenate(present, out=flat.numpy())
    return in_place(images, flat.to(device, non_blocking=on_cuda))


def to_host(images: Sequence[torch.Tensor | None]) -> list[np.ndarray | None]:
    """Return uint8 (H, W, 3) tensors of one device as arrays, after waiting for its current stream."""
    return in_place(images, joined(images).cpu().numpy())  # sync point


def together(images: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Copy images, (H, W, 3) each of any strides, to views of one flat tensor; None stays None."""
    return in_place(images, joined(images))


def joined(images: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """Return the bytes of all images, one image after the other.

    On a GPU one kernel copies 64 images or more, instead of a launch for each.
    """
    import torch

    # (H, W, 3) to (H * W, 3), which is a view even if channels lie apart
    present = [image.flatten(0, 1) for image in images if image is not None]
    return torch.cat(present).reshape(-1) if present else torch.empty(0, dtype=torch.uint8)


def in_place(images: Sequence[Any | None], flat: Any) -> list[Any | None]:
    """Return views of a flat array or tensor in place of the images, in order; None stays None."""
    views = split(flat, [image.shape for image in images if image is not None])
    return [None if image is None else next(views) for image in images]


def split(flat: Any, shapes: Iterable[tuple[int, ...]]) -> Iterator[Any]:
    """Yield views of a flat array or tensor, one for each shape, in order."""
    start = 0
    for shape in shapes:
        end = start + math.prod(shape)
        yield flat[start:end].reshape(tuple(shape))
        start = end


def writable(image: np.ndarray) -> np.ndarray:
    """Return the array, or a copy of a read-only one, since torch has no read-only tensors."""
    return np.ascontiguousarray(image if image.flags.writeable else image.copy())
