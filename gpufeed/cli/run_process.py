"""The Snakemake of `gpufeed run`, which ends with it."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import killpg

INTERRUPTED = 130  # what shells say of an interrupt
PATIENCE_S = 60.0  # that Snakemake has to end its jobs
HURRY_S = 10.0  # that it has to kill them and to unlock its folder, until it is killed itself
STOPPED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """Someone asked this process to stop."""


def follow(command: list[str]) -> int:
    """Run Snakemake to its end, and return its status, or that of an interrupt.

    Snakemake and its jobs are a process group of their own: a Ctrl-C of the terminal reaches them once, from
    here.
    """
    sys.stdout.flush()
    with stopping():
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, process_group=0
        )
        try:
            return process.wait()
        except BaseException as error:
            stop(process)
            if isinstance(error, Interrupted):
                return INTERRUPTED
            raise


def stop(process: subprocess.Popen) -> None:
    """End Snakemake and its jobs as Ctrl-C does, so that it unlocks its folder.

    After PATIENCE_S, or at another interrupt, it kills its jobs. What is left after HURRY_S, or at a third
    interrupt, is killed.
    """
    for how, seconds in ((signal.SIGINT, PATIENCE_S), (signal.SIGINT, HURRY_S), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError, subprocess.TimeoutExpired, Interrupted):
            killpg(process.pid, how)
            process.wait(seconds)


@contextmanager
def stopping() -> Iterator[None]:
    """Raise Interrupted in the block for each signal of STOPPED that this process does not ignore."""

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    heard = [number for number in STOPPED if signal.getsignal(number) != signal.SIG_IGN]  # nohup: SIGHUP
    before = {number: signal.signal(number, interrupt) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
