"""The ranks of a training as a group of torch.distributed, and values they share; trivial for one rank."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from gpufeed.core.errors import GpufeedError
from gpufeed.core.quantities import plural
from gpufeed.loaders.base import Loader, LoadRequest


def steps_in_epoch(loader: Loader) -> int:
    """Return the steps of an epoch on every rank: the batches of rank 0, which has the largest share."""
    request = loader.request
    if request.world_size == 1:
        return len(loader)
    share = -(-len(loader.split_ids) // request.world_size)
    return -(-share // request.batch_size)


def images_in_step(loader: Loader, step: int) -> int:
    """Return the number of images of all ranks in a step of an epoch, counted from 0.

    Ranks take samples of one order in turn, so that their batches together are a batch of world_size times
    the size.
    """
    whole = loader.request.batch_size * loader.request.world_size
    return min(whole, len(loader.split_ids) - step * whole)


def summed(values: torch.Tensor, request: LoadRequest) -> torch.Tensor:
    """Sum a tensor over all ranks in place and return it; every rank must call this."""
    if request.world_size > 1:
        distributed.all_reduce(values)
    return values


def gathered(value: Any, world_size: int) -> list[Any]:
    """Return the plain values of all ranks in order; every rank must call this."""
    if world_size == 1:
        return [value]
    values = [None] * world_size
    distributed.all_gather_object(values, value)
    return values


# Ranks wait for rank 0 while it evaluates. torchrun notices dead ranks, not this timeout.
LONGEST_WAIT = timedelta(hours=12)


def place_in_group() -> tuple[int, int]:
    """Return (rank, world size) of this process, (0, 1) outside of a group."""
    if not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def node_of_rank() -> str:
    """Return the name of this process's node, Slurm's if there is one."""
    return os.environ.get("SLURMD_NODENAME") or platform.node()


def check_world(found: int, ranks: int) -> None:
    """Raise GpufeedError unless there are as many ranks as the cell's devices on all nodes."""
    if found != ranks:
        raise GpufeedError(
            f"{plural(found, 'rank')} of a training",
            f"{ranks}, one for each of the cell's devices",
            "run the cell by snakemake or python -m gpufeed.train, which start the ranks themselves",
        )


@contextmanager
def joined(ranks: int, kind: str) -> Iterator[None]:
    """Join the group that torchrun started, on this rank's own device, inside the block.

    kind: cuda or cpu. The group ends with the block, unless that raises: torchrun ends ranks that wait for a
    failed one. Raises GpufeedError for another number of ranks.
    """
    check_world(int(os.environ.get("WORLD_SIZE", 1)), ranks)
    own = {}
    if kind == "cuda":
        own = {"device_id": torch.device("cuda", int(os.environ["LOCAL_RANK"]))}
        torch.cuda.set_device(own["device_id"])
    distributed.init_process_group("nccl" if own else "gloo", timeout=LONGEST_WAIT, **own)
    check_world(distributed.get_world_size(), ranks)
    yield
    distributed.barrier()
    distributed.destroy_process_group()
