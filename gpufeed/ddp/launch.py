"""Starts the ranks of a training, waits for them, and ends them all when one fails or this process must go.

The ranks are started by torchrun, with Slurm's variables taken out: they describe the tasks of a job, and
this job has one. Each rank sees all GPUs that this process sees, and takes the one of its local rank.
"""

import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import psutil

from gpufeed.ddp import files
from gpufeed.errors import GpufeedError, Skip

log = logging.getLogger("gpufeed")
LOOK_S = 0.2
GRACE_S = 10.0  # from the request to end to the end by force
# in torchrun's report on the ranks that failed
RANK, EXIT_CODE = re.compile(r"^\s*rank\s*:\s*(\d+)"), re.compile(r"^\s*exitcode\s*:\s*(-?\d+)")


class Ended(BaseException):
    """SIGTERM came while the ranks ran."""


def spread(call: files.Call, on_epoch: Callable[[dict], None] | None = None) -> Any:
    """Runs the call on its ranks; the result of rank 0, with tensors on the CPU.

    on_epoch: called here with each entry that rank 0 tells. Raises the error of the rank that failed first,
    a GpufeedError where one died without a word. An interrupt or SIGTERM ends the ranks, then this process.
    """
    with tempfile.TemporaryDirectory(prefix="gpufeed-ranks-") as name:
        folder = Path(name)
        files.write_call(folder, call)
        process = subprocess.Popen(
            command(call.devices, folder),
            env=environment(call.threads),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # an interrupt at the terminal comes here, and from here to them
        )
        said: list[str] = []
        reader = threading.Thread(
            target=relay, args=(process.stdout, said), name="gpufeed-ranks", daemon=True
        )
        reader.start()
        epochs = files.Epochs(folder)
        with sigterm_raises():
            try:
                while not ended(process):
                    for entry in epochs.new() if on_epoch else ():
                        on_epoch(entry)
            finally:
                stop(process)
        reader.join(timeout=GRACE_S)
        for entry in epochs.new() if on_epoch else ():
            on_epoch(entry)
        if process.returncode or not (folder / "result.pt").exists():
            raise blame(files.read_failures(folder), said, process.returncode)
        return files.read_result(folder)


def command(devices: int, folder: Path) -> list[str]:
    """torchrun on this node alone, with lines that name their rank."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=localhost"]
    told = ["--role=rank", "--tee=3", f"--log-dir={folder / 'logs'}"]
    return [*torchrun, f"--nproc-per-node={devices}", *told, "-m", "gpufeed.ddp.rank", str(folder)]


def environment(threads: int) -> dict[str, str]:
    """That of this process, its import path included, without what describes the tasks of a Slurm job."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PMI_"))}
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return kept | {"PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)}


def relay(lines: IO[str], said: list[str]) -> None:
    """Puts what the ranks say, each line with its rank, into the log of this process."""
    for line in lines:
        said.append(line.rstrip("\n"))
        log.info("%s", said[-1])


def ended(process: subprocess.Popen) -> bool:
    """Whether it ended, after a short wait."""
    try:
        process.wait(LOOK_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def stop(process: subprocess.Popen) -> None:
    """Ends torchrun and all ranks: by request, then by force. Nothing to do where they have ended."""
    if process.poll() is not None:
        return
    family = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for member in family:
        with suppress(psutil.NoSuchProcess):
            member.kill()


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Within it SIGTERM raises Ended; once that has ended the block, the signal comes again, as it was.

    Outside of the main thread, which alone hears signals, it changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def heard(number: int, frame: object) -> None:
        raise Ended

    before = signal.signal(signal.SIGTERM, heard)
    try:
        yield
    except Ended:
        signal.signal(signal.SIGTERM, before)
        os.kill(os.getpid(), signal.SIGTERM)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def blame(failures: list[files.Failure], said: list[str], code: int) -> Exception:
    """The error behind a training that failed: of the rank that was first, and not of those that missed it.

    said: torchrun's own report names a rank that died without a word.
    """
    ours = [failure for failure in failures if isinstance(failure.error, GpufeedError | Skip)]
    if ours:
        return ours[0].error
    told = {failure.rank for failure in failures}
    killed = {rank: code for rank, code in exit_codes(said).items() if rank not in told}
    if killed:
        rank, status = next(iter(killed.items()))
        return GpufeedError(
            f"rank {rank} of the training ended with {how(status)}, without a word of its own",
            "ranks that end together",
            "look for an out-of-memory kill, and at the lines of that rank in the log",
        )
    if failures:
        return failures[0].error
    return GpufeedError(
        f"torchrun ended with {how(code)} before any rank began",
        "ranks that begin",
        "look at its lines in the log",
    )


def exit_codes(said: list[str]) -> dict[int, int]:
    """Rank -> its exit status, by torchrun's report; without those that torchrun itself asked to end."""
    rank, found = None, {}
    for line in said:
        if match := RANK.match(line):
            rank = int(match[1])
        elif rank is not None and (match := EXIT_CODE.match(line)):
            found[rank] = int(match[1])
    return {rank: code for rank, code in found.items() if code != -signal.SIGTERM}


def how(code: int) -> str:
    """An exit status in words."""
    if code >= 0:
        return f"status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
