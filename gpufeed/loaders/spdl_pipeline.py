"""The pipeline of SPDL's loaders, and its threads in this process: MT in the words of its documentation."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

import numpy as np
from spdl.pipeline import Pipeline, PipelineBuilder

from gpufeed.core.errors import GpufeedError
from gpufeed.loaders.base import STUCK_S, LoadRequest
from gpufeed.loaders.spdl_batches import BatchMaker, Made, Part, parts_of

WAITING = 3  # batches at the end of the pipeline, as SPDL's add_sink has it by itself


def threads_of(request: LoadRequest) -> int:
    """Return how many threads or processes make batches."""
    return request.workers or request.threads


def described(
    parts: Iterable[Part], attempt: Callable, concurrency: int, request: LoadRequest
) -> PipelineBuilder:
    """Return each part through `attempt`, so many at a time, in their order."""
    return (
        PipelineBuilder()
        .add_source(parts)
        .pipe(attempt, concurrency=concurrency, output_order="input")
        .add_sink(request.prefetch_factor or WAITING)
    )


def made_here(
    parts: list[Part], attempt: Callable, concurrency: int, request: LoadRequest, threads: int
) -> Iterator[Made]:
    """Yield what comes of the parts, by a pipeline of this process that ends with this iterator.

    attempt: a function that runs in one of `threads` threads, or a coroutine; it returns the error that
    stopped a batch, where SPDL would log one that it raises and leave the batch out. Raises these errors, and
    GpufeedError if no batch comes for STUCK_S.
    """
    pipeline = described(parts, attempt, concurrency, request).build(num_threads=threads)
    with drained(pipeline), pipeline.auto_stop():
        done = pipeline.get_iterator(timeout=STUCK_S)
        for _ in parts:
            try:
                made = next(done)
            except TimeoutError as error:
                raise stuck(STUCK_S, threads_of(request)) from error
            if isinstance(made, Exception):
                raise made
            yield made


@contextmanager
def drained(pipeline: Pipeline) -> Iterator[None]:
    """Takes out of a stopped pipeline what waits at its end, and would stay until Python collects it."""
    try:
        yield
    finally:
        with suppress(EOFError, TimeoutError, RuntimeError):  # its end; or it did not start
            while True:
                pipeline.get_item(timeout=0)


def stuck(seconds: float, workers: int) -> GpufeedError:
    """Return what is wrong when no batch came for so long."""
    return GpufeedError(
        f"no batch from SPDL's pipeline for {seconds} s",
        f"{workers} threads or processes at work",
        "look for a dead network mount, a disk that hangs, and at the load of the node",
    )


class Threads:
    """Batches made by threads of this process."""

    def __init__(self, maker: BatchMaker):
        self.maker = maker

    def open(self) -> None:
        """Nothing begins before an epoch."""

    def run(self, order: np.ndarray, epoch: int) -> Iterator[Made]:
        """Return the batches of `order` (sample ids, int64); raise as `made_here`."""
        request = self.maker.request
        parts, threads = [*parts_of(order, epoch, request.batch_size)], threads_of(request)
        return made_here(parts, self.maker.attempt, threads, request, threads)

    def close(self) -> None:
        """Nothing outlives an epoch."""
