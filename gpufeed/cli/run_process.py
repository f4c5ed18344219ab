"""The Snakemake of `gpufeed run`: its output goes to a file, its progress to the terminal."""

import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from os import killpg
from pathlib import Path

from gpufeed.core.errors import GpufeedError

LOG = "snakemake.log"
INTERRUPTED = 130  # what shells say of an interrupt
LOOK_S = 0.5
PATIENCE_S = 60.0  # that Snakemake has to end its jobs, until it is killed
STOPPED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# what core.run_time_estimate says, and how further lines of its table begin
ANNOUNCED, ROW = re.compile(r"Expected minutes|No NVIDIA GPU on|Host memory:|own leaves out"), "  "
REFUSED = re.compile(r"^found: .*\n(?:.*\n)*?expected: .*\n(?:.*\n)*?what to do: .*$", re.MULTILINE)
# the last line of a traceback, without Snakemake's own, which say that there was one
RAISED = re.compile(r"^(?!Rule|CalledProcess|Workflow)[A-Za-z_.]*(?:Error|Exception): .+$", re.MULTILINE)
LOCKED = "LockException"


class Interrupted(Exception):
    """Someone asked this process to stop."""


class Run:
    """A run of Snakemake by `command`. log: what it prints, in the folder of the results."""

    def __init__(self, command: list[str], results: Path):
        self.command, self.log, self.seen, self.in_table = command, results / LOG, 0, False

    def follow(self, look: Callable[[], None]) -> int:
        """Run it to its end; print what it expects, and call `look` meanwhile.

        Return its status, or that of an interrupt. Snakemake and its jobs are a process group of their own:
        a Ctrl-C of the terminal reaches them once, from here.
        """
        with self.log.open("w") as out, stopping():
            process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, process_group=0
            )
            try:
                while process.poll() is None:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(LOOK_S)
                    for line in self.announced():
                        print(line, flush=True)
                    look()
            except BaseException as error:
                self.stop(process)
                if isinstance(error, Interrupted):
                    return INTERRUPTED
                raise
        return process.returncode

    def stop(self, process: subprocess.Popen) -> None:
        """End Snakemake and its jobs as Ctrl-C does, so that it unlocks its folder.

        What is left after PATIENCE_S, or at another interrupt, is killed.
        """
        for how, seconds in ((signal.SIGINT, PATIENCE_S), (signal.SIGKILL, None)):
            with suppress(ProcessLookupError):
                killpg(process.pid, how)
            with suppress(subprocess.TimeoutExpired, Interrupted):
                process.wait(seconds)

    def announced(self) -> Iterator[str]:
        """Yield what the log has of expected minutes and of what is left out, since the last time."""
        with self.log.open("rb") as file:
            file.seek(self.seen)
            while (line := file.readline()).endswith(b"\n"):
                self.seen, text = self.seen + len(line), line.decode(errors="replace").rstrip()
                self.in_table = bool(ANNOUNCED.match(text)) or (self.in_table and text.startswith(ROW))
                if self.in_table:
                    yield text

    def sentence(self) -> str:
        """Return what stopped the run, from its log."""
        text = self.log.read_text(errors="replace")
        if LOCKED in text:
            unlock = shlex.join([*self.command, "--unlock"])
            return str(
                GpufeedError(
                    f"the lock of another run in {Path.cwd()}",
                    "one run at a time in a folder",
                    f"wait for it; if none runs, the last one was killed: {unlock}",
                )
            )
        for pattern in (REFUSED, RAISED):
            if found := dict.fromkeys(match[0] for match in pattern.finditer(text)):
                return "\n".join(found)
        return (text.strip().splitlines() or ["Snakemake ended without a word"])[-1]


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
