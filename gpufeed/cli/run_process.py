"""The Snakemake of `gpufeed run`, which ends with it."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import killpg

from gpufeed.workflow.terminal import TWICE_S

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
    """End Snakemake, which ends its jobs and unlocks its folder.

    After PATIENCE_S, or at another interrupt, it kills its jobs. What is left after HURRY_S, or at a third
    interrupt, is killed. SIGTERM: shells let what they start in the background ignore SIGINT, and its
    children inherit that.
    """
    for seconds in (PATIENCE_S, HURRY_S):
        with suppress(subprocess.TimeoutExpired, Interrupted):
            process.terminate()
            process.wait(seconds)
    with suppress(ProcessLookupError, Interrupted):
        killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def stopping() -> Iterator[None]:
    """Raise Interrupted in the block for each signal of STOPPED that this process does not ignore.

    One that comes again within TWICE_S is the same.
    """
    last_s = -TWICE_S

    def interrupt(number: int, frame: object) -> None:
        nonlocal last_s
        before_s, last_s = last_s, time.monotonic()
        if last_s - before_s >= TWICE_S:
            raise Interrupted

    heard = [number for number in STOPPED if signal.getsignal(number) != signal.SIG_IGN]  # nohup: SIGHUP
    before = {number: signal.signal(number, interrupt) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
