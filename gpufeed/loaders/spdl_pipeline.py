"""The pipeline of SPDL's loaders, and its threads in this process ("MT" in its documentation)."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

import numpy as np
from spdl.pipeline import Pipeline, PipelineBuilder

from gpufeed.core.errors import GpufeedError
from gpufeed.loaders.base import STUCK_S, LoadRequest
from gpufeed.loaders.spdl_batches import BatchMaker, Made, Part, parts_of

WAITING = 3  # batches in the output queue, the default of SPDL's add_sink


def threads_of(request: LoadRequest) -> int:
    """Return how many threads or processes make batches."""
    return request.workers or request.threads


def described(
    parts: Iterable[Part], attempt: Callable, concurrency: int, request: LoadRequest
) -> PipelineBuilder:
    """Return a pipeline that calls `attempt` on each part, `concurrency` at a time, and keeps their order."""
    return (
        PipelineBuilder()
        .add_source(parts)
        .pipe(attempt, concurrency=concurrency, output_order="input")
        .add_sink(request.prefetch_factor or WAITING)
    )


def made_here(
    parts: list[Part], attempt: Callable, concurrency: int, request: LoadRequest, threads: int
) -> Iterator[Made]:
    """Yield the batches of the parts, by a pipeline of this process that ends with this iterator.

    attempt: a function that runs in one of `threads` threads, or a coroutine. It returns the error of a
    batch, since SPDL would log an error that it raises and drop the batch. Raises these errors, and
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
    """Empty the output queue of a stopped pipeline, which would otherwise stay until Python collects it."""
    try:
        yield
    finally:
        with suppress(EOFError, TimeoutError, RuntimeError):  # its end; or it did not start
            while True:
                pipeline.get_item(timeout=0)


def stuck(seconds: float, workers: int) -> GpufeedError:
    """Return the error for no batch within this time."""
    return GpufeedError(
        f"no batch from SPDL's pipeline for {seconds} s",
        f"{workers} running threads or processes",
        "look for a dead network mount, a disk that hangs, and at the load of the node",
    )


class Threads:
    """Batches made by threads of this process."""

    def __init__(self, maker: BatchMaker):
        self.maker = maker

    def open(self) -> None:
        """Do nothing: threads start with an epoch."""

    def run(self, order: np.ndarray, epoch: int) -> Iterator[Made]:
        """Yield the batches of `order` (sample ids, int64); raise as `made_here` does."""
        request = self.maker.request
        parts, threads = [*parts_of(order, epoch, request.batch_size)], threads_of(request)
        return made_here(parts, self.maker.attempt, threads, request, threads)

    def close(self) -> None:
        """Do nothing: threads end with an epoch."""
