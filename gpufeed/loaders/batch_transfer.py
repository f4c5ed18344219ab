"""From the host's memory to the device without a wait of the host."""

import numpy as np
import torch

from gpufeed.loaders.base import LoadRequest
from gpufeed.system.timing import Mark, Span


def send(values: np.ndarray, device: torch.device) -> torch.Tensor:
    """A copy of an int64 array on the device, without a wait of the host on CUDA."""
    tensor = torch.from_numpy(values.copy())
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def empty_batch(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, request: LoadRequest
) -> torch.Tensor:
    """Memory for a batch; on the host pinned if it will go to CUDA, unless the request says otherwise.

    torch keeps such memory and gives it out again only when the queued copies that read it are done.
    """
    pin = device.type == "cpu" and request.device.type == "cuda" and request.pin_memory
    return torch.empty(shape, dtype=dtype, device=device, pin_memory=pin)


def upload(images: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, Span | None]:
    """A host batch on the device, queued on the current stream, and the copy's span; None on the CPU."""
    if device.type == "cpu":
        return images, None
    start = Mark(device)
    images = images.to(device, non_blocking=device.type == "cuda")
    return images, Span(start, Mark(device))
