"""The Snakemake of `gpufeed run`: its output goes to a file, its progress to the terminal."""

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpufeed.core.errors import GpufeedError

LOG = "snakemake.log"
LOOK_S = 0.5
PATIENCE_S = 60.0  # that Snakemake has to end its jobs, until it is killed
STOPPED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ANNOUNCED = re.compile(
    r"Expected minutes|No NVIDIA GPU on|Host memory:|own leaves out"
)  # see core.run_time_estimate
ROW = "  "  # begins each further line of the expected minutes
REFUSED = re.compile(r"^found: .*\n(?:.*\n)*?expected: .*\n(?:.*\n)*?what to do: .*$", re.MULTILINE)
# the last line of a traceback, without Snakemake's own, which say that there was one
RAISED = re.compile(r"^(?!Rule|CalledProcess|Workflow)[A-Za-z_.]*(?:Error|Exception): .+$", re.MULTILINE)
LOCKED = "LockException"


class Interrupted(Exception):
    """Someone asked this process to stop."""


class Run:
    """A run of Snakemake by `command`, which begins at once. log: what it prints, in the folder of the results."""

    def __init__(self, command: list[str], results: Path):
        self.command, self.log, self.seen, self.in_table = command, results / LOG, 0, False

    def follow(self, look: Callable[[], None]) -> int:
        """Run it to its end; print what it expects, and call `look` meanwhile. Return its status, 130 if stopped.

        It has a process group of its own: a Ctrl-C of the terminal reaches it once, from here, with its jobs.
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
            except Interrupted:
                self.stop(process)
                return 130
        return process.returncode

    def stop(self, process: subprocess.Popen) -> None:
        """End Snakemake and its jobs as Ctrl-C does: it takes its lock away; kill what is left after PATIENCE_S."""
        for how, seconds in ((signal.SIGINT, PATIENCE_S), (signal.SIGKILL, None)):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, how)
            with suppress(subprocess.TimeoutExpired, Interrupted):
                process.wait(seconds)

    def announced(self) -> Iterator[str]:
        """Yield what the log has of expected minutes and of what is left out, since the last time."""
        with self.log.open(errors="replace") as file:
            file.seek(self.seen)
            while (line := file.readline()).endswith("\n"):
                self.seen += len(line.encode(errors="replace"))
                self.in_table = bool(ANNOUNCED.match(line)) or (self.in_table and line.startswith(ROW))
                if self.in_table:
                    yield line.rstrip("\n")

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
    """Raise Interrupted in the block for the first signal of STOPPED; leave the others to it."""

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    heard = [number for number in STOPPED if signal.getsignal(number) != signal.SIG_IGN]  # nohup ignores one
    before = {number: signal.signal(number, interrupt) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
