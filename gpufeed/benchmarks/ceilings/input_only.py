"""The input-only ceiling: a loader alone, whose batches reach their device and are dropped there."""

import time
from collections import deque
from contextlib import closing
from dataclasses import dataclass

import torch

from gpufeed.core.errors import GpufeedError
from gpufeed.loaders.base import Batch, Loader
from gpufeed.system.timing import synchronise

BEHIND = 2  # batches by which the device may be behind, as behind a training loop


@dataclass(frozen=True)
class Drained:
    """Epochs of a loader alone, on the host's clock.

    seconds: of all, each from the first request until its last batch is on the device; the end of workers
    that serve one epoch only is not in it, as it is in none of the trainer's epochs. first_batch_s: each
    epoch's first batch.
    """

    seconds: float
    first_batch_s: list[float]


def example(loader: Loader) -> Batch:
    """A copy of the first batch of an epoch, of which the rest comes too: no epoch is left half done."""
    found = None
    with closing(iter(loader)) as source:
        for batch in source:
            found = batch.clone() if found is None else found
    return found


def drain(loader: Loader, epochs: int = 1, lead_in: bool = True) -> Drained:
    """Whole epochs of an open loader; raises GpufeedError where one loses or repeats images.

    lead_in: as in Bench.segment.
    """
    seconds, firsts = 0.0, []
    for number in range(-int(lead_in and loader.keeps_on), epochs):
        batches, images, expected, reached = 0, 0, loader.share, deque()
        last = len(loader)
        synchronise(loader.request.device)
        begin = time.perf_counter()
        with closing(iter(loader)) as source:
            for batch in source:
                _wait_behind(reached, loader.request.device)
                batches, images = batches + 1, images + len(batch.images)  # gathered, if they were not yet
                if batches == 1 and number >= 0:
                    firsts.append(time.perf_counter() - begin)
                if batches == last and number >= 0:
                    synchronise(loader.request.device)  # sync point: all batches are there
                    seconds += time.perf_counter() - begin
        if images != expected:
            raise GpufeedError(
                f"{images} images from {type(loader).__name__} alone",
                f"{expected}, each sample once",
                "choose another loader and report this one",
            )
    return Drained(seconds, firsts)


def _wait_behind(reached: "deque[torch.cuda.Event]", device: torch.device) -> None:
    """Waits for the batch before the last BEHIND ones, without which memory would pile up on the device."""
    if device.type != "cuda":
        return
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    reached.append(event)
    if len(reached) > BEHIND:
        reached.popleft().synchronize()
