"""Work spread over processes, with the death of one of them told as a sentence."""

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

from gpufeed.errors import GpufeedError
from gpufeed.orphan import end_with


def run(function: Callable, tasks: tuple, workers: int) -> Iterator:
    """The results of `function` over zipped `tasks`, in order, from a process pool if workers > 1.

    The processes end with this one, even if that is killed: left alone they would wait for tasks for ever.
    """
    if workers <= 1:
        yield from map(function, *tasks)
        return
    try:
        with ProcessPoolExecutor(workers, initializer=end_with, initargs=(1,)) as pool:
            yield from pool.map(function, *tasks)
    except BrokenProcessPool as error:
        raise GpufeedError(
            "a decoding process died, as happens when memory runs out",
            f"{workers} decoding processes that stay alive",
            "give the rule fewer threads or the job more memory, and run snakemake again",
        ) from error


@contextmanager
def garbage_kept():
    """Within it, processes that are forked never collect what is garbage here.

    A CUDA object that a forked process destroys, a stream or a graph in a reference cycle, aborts it: CUDA
    does not live there. Costs microseconds. Source: gc.freeze in Python's documentation.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
