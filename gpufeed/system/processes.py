"""Work spread over processes, with the death of one of them reported in a sentence."""

import gc
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from itertools import islice
from multiprocessing.connection import Connection

import psutil

from gpufeed.core.errors import GpufeedError
from gpufeed.system.host_memory import keep_freed_blocks
from gpufeed.system.parent_watchdog import end_with


def run(function: Callable, tasks: tuple, workers: int) -> Iterator:
    """The results of `function` over zipped `tasks`, in order, from a process pool if workers > 1.

    At most 2 * workers tasks are at work or have results that nobody has taken: memory is bounded by these,
    however many tasks there are and however slowly they are taken.

    The processes end with this one, even if that is killed: left alone they would wait for tasks for ever.
    """
    if workers <= 1:
        yield from map(function, *tasks)
        return
    try:
        with ProcessPoolExecutor(workers, initializer=settle) as pool:
            yield from windowed(pool, function, zip(*tasks, strict=False), 2 * workers)
    except BrokenProcessPool as error:
        raise GpufeedError(
            "a decoding process died, as happens when memory runs out",
            f"{workers} decoding processes that stay alive",
            "give the job fewer cores or more memory, and run the command again",
        ) from error


def settle() -> None:
    """Makes a process of the pool one that ends with its parent, and keeps freed blocks as that may do."""
    end_with(1)
    keep_freed_blocks()


def windowed(pool: ProcessPoolExecutor, function: Callable, tasks: Iterator[tuple], window: int) -> Iterator:
    """The results over `tasks`, each the arguments of a call, in order; `window` of them under way at most.

    Executor.map hands over all tasks at once, and keeps every result until it is taken.
    """
    waiting: deque[Future] = deque(pool.submit(function, *task) for task in islice(tasks, window))
    try:
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(pool.submit(function, *task) for task in islice(tasks, 1))
            yield result
    finally:
        for future in waiting:
            future.cancel()


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


@contextmanager
def forked_child(
    work: Callable[[Connection], None], name: str, begun: Callable[[], None]
) -> Iterator[tuple[Connection, multiprocessing.Process]]:
    """Run `work` in a fork of this process; yield the end of the pipe that hears from it, and the process.

    work: gets the end to send by. The child and all that it starts end with the block, and with this process.
    begun: called once the child runs, for what starts threads: none may be there when it is forked.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def run() -> None:
        end_with(1)
        work(sender)

    child = context.Process(target=run, name=name)
    child.start()
    sender.close()
    try:
        begun()
        yield receiver, child
    finally:
        if child.is_alive():
            process = psutil.Process(child.pid)
            for one in [process, *process.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    one.kill()
        child.join()


def exit_words(child: multiprocessing.Process) -> str:
    """Wait until a child has ended, and return its exit code in words."""
    child.join()
    if (code := child.exitcode) < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"
