"""A training step as one CUDA graph: captured once, replayed with one launch.

Source: CUDA Graphs in the PyTorch notes, whole-network capture.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

from gpufeed.loaders.base import DeferredGather
from gpufeed.training.step import TrainStep


@contextmanager
def captured(graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    """Record the launches of the block into the graph.

    Garbage is collected before the capture and not during it: destroying another graph would end the capture
    and break torch's allocator, so that no smaller batch would fit either. thread_local: threads of a loader
    may call CUDA in the meantime. Raises OutOfMemoryError if memory ran out, which the error of a failed
    capture does not say; the memory of a failed capture is free again.
    """
    enabled, short = gc.isenabled(), times_short_of_memory()
    gc.collect()
    gc.disable()
    pool = torch.cuda.MemPool()  # only to name the graph's memory; the graph keeps it
    stream = torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph, pool=pool.id, capture_error_mode="thread_local"):
            yield
    except BaseException as error:
        torch.cuda.set_stream(stream)  # torch leaves its own if it cannot end the capture
        release_pool(graph, pool)
        if isinstance(error, torch.OutOfMemoryError):
            raise  # it says how much was asked for
        if isinstance(error, RuntimeError) and "captur" in str(error) and times_short_of_memory() > short:
            raise torch.OutOfMemoryError("CUDA out of memory while a CUDA graph was captured") from error
        raise
    finally:
        if enabled:
            gc.enable()


def release_pool(graph: torch.cuda.CUDAGraph, pool: torch.cuda.MemPool) -> None:
    """Give the memory of a failed capture back, which torch may keep for ever (pytorch#190308)."""
    graph.reset()  # enough for a torch that has mended it
    with suppress(RuntimeError):  # unless the capture's end failed, the allocator knows that it is over
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool.id)
    while pool.use_count() > 1:
        torch._C._cuda_releasePool(torch.cuda.current_device(), pool.id)


def forget_errors() -> None:
    """Let the threads of autograd report the errors that a failed capture left there.

    CUDA keeps the last error of each thread, and torch would take it for one of the next step.
    """
    for _ in range(2):  # the error of this thread comes first
        with suppress(RuntimeError):
            torch.ones(1, device="cuda", requires_grad=True).sum().backward()
            return


def times_short_of_memory() -> int:
    """Return how often the allocator has found too little memory; it then frees what it holds or gives up."""
    counts = torch.cuda.memory_stats()
    return counts.get("num_alloc_retries", 0) + counts.get("num_ooms", 0)


class GraphedStep:
    """Replays a captured step on batches of the captured shape; any other batch runs the step itself.

    The step must be warmed up, since a capture can neither allocate optimiser state nor tune convolutions.
    Both ways train the same weights with the same optimiser and scaler.
    """

    def __init__(self, step: TrainStep, example: torch.Tensor | DeferredGather):
        """Capture the step. example: images of the shape and dtype to capture, on the device, any values.

        For DeferredGather the graph holds the store's address, and a batch only provides row numbers.
        """
        self.step = step
        device, n = example.device, len(example)
        self.images = example.clone()
        self.labels = torch.zeros(n, dtype=torch.int64, device=device)
        self.ids = torch.arange(n, device=device)
        self.epoch = torch.zeros((), dtype=torch.int64, device=device)
        self.graph = torch.cuda.CUDAGraph()
        with captured(self.graph):
            self.loss = step(self.images, self.labels, self.ids, self.epoch)

    def __call__(
        self, images: torch.Tensor | DeferredGather, labels: torch.Tensor, ids: torch.Tensor, epoch: int
    ) -> torch.Tensor:
        """Make a step; return a copy of the loss, which the next replay does not overwrite."""
        self.epoch.fill_(epoch)
        if images.shape != self.images.shape:
            return self.step(images, labels, ids, self.epoch)
        self.images.copy_(images, non_blocking=True)
        self.labels.copy_(labels, non_blocking=True)
        self.ids.copy_(ids, non_blocking=True)
        self.graph.replay()
        return self.loss.clone()
