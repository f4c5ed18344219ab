"""SIGTERM as notice: who heeds it keeps what it has before it ends.

Slurm sends it some time before it kills: at a preemption, a time limit, a requeue; so does
`scancel --signal=TERM`. Whoever does not heed it is ended by it at once.
"""

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger("gpufeed")
STATUS = 128 + signal.SIGTERM  # what shells say of a process that SIGTERM ended


class Ended(SystemExit):
    """The work was asked to end, and has kept its state; no error of the work."""

    def __init__(self) -> None:
        super().__init__(STATUS)


class _Notice:
    """Of this process. Plain values: a lock would wait for itself in a handler that interrupts itself."""

    heeded = given = False

    def hear(self, number: int, frame: object) -> None:
        self.given = True


_notice = _Notice()


def given() -> bool:
    """Whether this process has to end soon; false where nobody heeds it."""
    return _notice.given


@contextmanager
def heeded() -> Iterator[None]:
    """Within it SIGTERM is written down, for who asks `given`, however often it comes.

    Where Ended leaves the block that lasts to the end of the process, since Slurm may send it twice, to a
    process and through srun. What fails while the process has to end fails by that, as a loader whose helpers
    were ended with it: it raises Ended instead. Outside of the main thread, which alone hears signals, it
    changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _notice.hear)
    _notice.heeded = True
    ends = False
    try:
        yield
    except Ended:
        ends = True
        raise
    except Exception as error:
        if not given():
            raise
        ends = True
        log.warning("asked to end, and stopped by %s: %s", type(error).__name__, error)
        raise Ended from error
    finally:
        if not ends:
            signal.signal(signal.SIGTERM, before)
            _notice.heeded = _notice.given = False


def left_to_parent(number: int) -> None:
    """For a helper process, as its first act: where its parent heeds SIGTERM the parent ends it.

    Slurm and shells send it to all processes of a job at once. number: of the helper, not used.
    """
    if _notice.heeded:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
