"""The pipeline of the loader spdl, whichever process runs it."""

from collections.abc import Iterable

from spdl.pipeline import PipelineBuilder

from gpufeed.errors import GpufeedError
from gpufeed.loaders.base import LoadRequest
from gpufeed.loaders.spdl_batches import BatchMaker, Part

WAITING = 3  # batches at the end of the pipeline, as SPDL's add_sink has it by itself


def threads_of(request: LoadRequest) -> int:
    """How many threads make batches."""
    return request.workers or request.threads


def described(parts: Iterable[Part], maker: BatchMaker) -> PipelineBuilder:
    """Each part through `maker`, in their order."""
    request = maker.request
    return (
        PipelineBuilder()
        .add_source(parts)
        .pipe(maker.attempt, concurrency=threads_of(request), output_order="input")
        .add_sink(request.prefetch_factor or WAITING)
    )


def stuck(seconds: float, threads: int) -> GpufeedError:
    """What is wrong when no batch came for so long."""
    return GpufeedError(
        f"no batch from SPDL's pipeline for {seconds} s",
        f"{threads} threads at work",
        "look for a dead network mount, a disk that hangs, and at the load of the node",
    )
