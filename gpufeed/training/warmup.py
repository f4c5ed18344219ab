"""Training steps before the clock starts, after which the weights are restored."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gpufeed.loaders.base import DeferredGather
from gpufeed.system.timing import synchronise
from gpufeed.training.recorder import forked_rng
from gpufeed.training.step import Snapshot, TrainStep

WARMUP_STEPS = 3  # as in the PyTorch notes on CUDA graphs before a capture


@contextmanager
def side_stream(device: torch.device) -> Iterator[None]:
    """Run the block's work on a separate CUDA stream, in order with work before and after."""
    if device.type != "cuda":
        yield
        return
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        yield
    torch.cuda.current_stream(device).wait_stream(side)


def warm_up(step: TrainStep, example: torch.Tensor | DeferredGather, last: int) -> None:
    """Run steps of both batch sizes of an epoch on a side stream, then restore the weights.

    So libraries are loaded, convolution algorithms searched, the model compiled and the optimiser's state
    allocated before the clock starts and before a capture. example: as in Trainer.prepare. last: size of the
    epoch's last batch, 0 if it is full.
    """
    device, snapshot = step.job.device, Snapshot(step)
    # of the same kind as in training, since an augment may have a kernel for each kind to load before a
    # capture
    epoch = torch.zeros((), dtype=torch.int64, device=device) if step.job.cuda_graphs else 0
    with forked_rng(device), side_stream(device), warnings.catch_warnings():
        # the optimiser warns that it was made for a graph and runs without one, which is intended
        warnings.filterwarnings("ignore", message="This instance was constructed with capturable")
        for images in [example] * WARMUP_STEPS + ([example[:last]] if last else []):
            labels = torch.zeros(len(images), dtype=torch.int64, device=device)
            step(images, labels, torch.arange(len(images), device=device), epoch)
        snapshot.put_back()
    synchronise(device)
