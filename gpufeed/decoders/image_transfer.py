"""Decoded images between host and device: one copy a call, whatever their sizes."""

import itertools
from collections.abc import Sequence

import numpy as np
import torch


def to_device(images: Sequence[np.ndarray | None], device: torch.device) -> list[torch.Tensor | None]:
    """uint8 (H, W, 3) arrays as tensors on `device`; None stays None."""
    if device.type == "cpu":
        return [None if image is None else torch.from_numpy(writable(image)) for image in images]
    present = [image for image in images if image is not None]
    flat = np.concatenate([image.reshape(-1) for image in present]) if present else np.empty(0, np.uint8)
    pieces = split(torch.from_numpy(flat).to(device), [image.shape for image in present])
    return [None if image is None else next(pieces) for image in images]


def to_host(images: Sequence[torch.Tensor | None]) -> list[np.ndarray | None]:
    """uint8 (H, W, 3) tensors of one device as arrays; waits for the device's current stream."""
    present = [image for image in images if image is not None]
    if not present:
        return list(images)
    flat = torch.cat([image.reshape(-1) for image in present]).cpu()  # synchronises
    pieces = split(flat.numpy(), [tuple(image.shape) for image in present])
    return [None if image is None else next(pieces) for image in images]


def split(flat, shapes: Sequence[tuple[int, ...]]):
    """Views of a one-dimensional array or tensor, one a shape, in order."""
    ends = list(itertools.accumulate((int(np.prod(shape)) for shape in shapes), initial=0))
    for start, end, shape in zip(ends[:-1], ends[1:], shapes, strict=True):
        yield flat[start:end].reshape(shape)


def writable(image: np.ndarray) -> np.ndarray:
    """The array itself, or a copy if it is read-only, as torch has no read-only tensors."""
    return np.ascontiguousarray(image if image.flags.writeable else image.copy())
