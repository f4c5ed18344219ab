"""Work spread over processes; the death of one is reported as a sentence."""

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
    """Yield the results of `function` over zipped `tasks`, in order, from a process pool if workers > 1.

    At most 2 * workers tasks are running or have results that were not taken yet, which bounds the memory.

    The processes end with this one, even if it is killed; otherwise they would wait for tasks forever.
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
    """Prepare a process of the pool: it ends with its parent, and keeps freed blocks as its parent does."""
    end_with(1)
    keep_freed_blocks()


def windowed(pool: ProcessPoolExecutor, function: Callable, tasks: Iterator[tuple], window: int) -> Iterator:
    """Yield the results over `tasks` (tuples of arguments) in order; at most `window` are in flight.

    Executor.map would submit all tasks at once, and keep every result until it is taken.
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
    """Keep processes that are forked inside the block from collecting this process's garbage.

    A forked process that destroys a CUDA object, such as a stream in a reference cycle, aborts, since CUDA
    does not survive a fork. This costs microseconds. Source: gc.freeze in Python's documentation.
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
    """Run `work` in a fork of this process; yield the receiving end of its pipe, and the process.

    work: gets the sending end. The child and all that it starts end with the block, and with this process.
    begun: called once the child runs, to start threads, of which none may exist at the fork.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def run() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # this process hears a Ctrl-C, and ends the child
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
