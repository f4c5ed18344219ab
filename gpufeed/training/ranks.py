"""What the processes of one training, a rank a device, must agree on. With one rank all of it is trivial.

torch.distributed is used as it stands: gpufeed.training.distributed starts the ranks and joins them.
"""

from typing import Any

import torch
from torch import distributed

from gpufeed.loaders.base import Loader, LoadRequest


def steps_in_epoch(loader: Loader) -> int:
    """Steps of an epoch, the same on every rank: the batches of rank 0, whose share is the largest."""
    request = loader.request
    if request.world_size == 1:
        return len(loader)
    share = -(-len(loader.split_ids) // request.world_size)
    return -(-share // request.batch_size)


def images_in_step(loader: Loader, step: int) -> int:
    """Images of all ranks in a step of an epoch, counted from 0.

    Ranks take turns in one order, so that their batches together are one batch of world_size times the size.
    """
    whole = loader.request.batch_size * loader.request.world_size
    return min(whole, len(loader.split_ids) - step * whole)


def summed(values: torch.Tensor, request: LoadRequest) -> torch.Tensor:
    """The sum of a tensor over all ranks, in place; every rank must ask."""
    if request.world_size > 1:
        distributed.all_reduce(values)
    return values


def gathered(value: Any, world_size: int) -> list[Any]:
    """The plain values of all ranks in their order; every rank must ask."""
    if world_size == 1:
        return [value]
    values = [None] * world_size
    distributed.all_gather_object(values, value)
    return values
