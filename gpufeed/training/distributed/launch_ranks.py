"""Start the ranks of a training, wait for them, and end them all if one fails or this process must end.

torchrun starts the ranks, without Slurm's variables, which describe the tasks of a job. On several nodes srun
starts a torchrun on each (gpufeed.training.distributed.node_task). Each rank sees all GPUs that its torchrun
sees, and uses the one of its local rank.
"""

import logging
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.system import sigterm_handler
from gpufeed.training.distributed import rank_commands, rank_files
from gpufeed.training.distributed.rank_commands import GRACE_S

log = logging.getLogger("gpufeed")
LOOK_S = 0.2
READ_S = 10.0  # for the last lines of ranks that have ended
# in torchrun's report on failed ranks, among which srun may mix a few lines of other nodes
RANK_AND_STATUS = re.compile(r"^\s*rank\s*:\s*(\d+).*\n(?:.*\n){0,4}?\s*exitcode\s*:\s*(-?\d+)", re.MULTILINE)


def spread(
    call: rank_files.Call, on_epoch: Callable[[dict], None] | None = None, scratch: Path | None = None
) -> Any:
    """Run the call on its ranks; return the result of rank 0, with tensors on the CPU.

    on_epoch: called in this process with each entry that rank 0 reports. scratch: a folder that all nodes
    see, for the files that several nodes exchange. Raises the error of the rank that failed first, a
    GpufeedError if one died without an error, and Skip without the nodes. An interrupt or SIGTERM ends the
    ranks, which may keep their state, then this process: at SIGTERM it raises sigterm_handler.Ended.
    """
    several = call.nodes > 1
    shared = scratch if several else None
    if shared is not None:
        shared.mkdir(parents=True, exist_ok=True)
    given = {"prefix": "gpufeed-ranks-", "dir": shared, "ignore_cleanup_errors": several}
    with sigterm_handler.handling(), tempfile.TemporaryDirectory(**given) as name:
        folder = Path(name)
        alone = rank_commands.torchrun_command(call.devices, folder)
        command = rank_commands.srun_command(call.nodes, call.devices, folder) if several else alone
        rank_files.write_call(folder, call)
        process = subprocess.Popen(
            command,
            env=rank_commands.torchrun_environment(call.threads)
            | (rank_commands.srun_environment() if several else {}),
            stdin=subprocess.PIPE if several else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # an interrupt at the terminal reaches this process, which ends them
        )
        said: list[str] = []
        reader = threading.Thread(
            target=relay, args=(process.stdout, said), name="gpufeed-ranks", daemon=True
        )
        reader.start()
        epochs = rank_files.Epochs(folder)
        try:
            while not ended(process) and not sigterm_handler.received():
                for entry in epochs.new() if on_epoch else ():
                    on_epoch(entry)
            if several and sigterm_handler.received():
                # srun kills its tasks at SIGTERM; the first of them ends with its input
                process.stdin.close()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE_S)
        finally:
            rank_commands.stop_torchrun(process)
        reader.join(timeout=READ_S)
        failed = process.returncode or not (folder / "result.pt").exists()
        asked = sigterm_handler.received() and (failed or not call.keeps)
        # Slurm may send SIGTERM to the step of the ranks and not to this process
        if asked or (failed and several and rank_commands.was_end_requested(folder, call.nodes)):
            log.info("asked to end: all ranks have ended")
            raise sigterm_handler.Ended
        for entry in epochs.new() if on_epoch else ():
            on_epoch(entry)
        if failed:
            by = "srun" if several else "torchrun"
            raise blame(rank_files.read_failures(folder, call.ranks), said, process.returncode, by)
        return rank_files.read_result(folder)


def relay(lines: IO[str], said: list[str]) -> None:
    """Log the output of the ranks, whose lines begin with the rank."""
    for line in lines:
        said.append(line.rstrip("\n"))
        log.info("%s", said[-1])


def ended(process: subprocess.Popen) -> bool:
    """Return whether the process has ended, after a short wait."""
    try:
        process.wait(LOOK_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def blame(failures: list[rank_files.Failure], said: list[str], code: int, by: str = "torchrun") -> Exception:
    """Return the error of the rank that failed first, not of those that failed because of it.

    said: torchrun's output, which names a rank that died without an error. by: the program of status `code`.
    """
    ours = [failure for failure in failures if isinstance(failure.error, GpufeedError | Skip)]
    if ours:
        return ours[0].error
    reported = {failure.rank for failure in failures}
    killed = {rank: code for rank, code in exit_codes(said).items() if rank not in reported}
    if killed:
        rank, status = next(iter(killed.items()))
        return GpufeedError(
            f"rank {rank} of the training ended with {how(status)}, without an error message",
            "ranks that end together",
            "look for an out-of-memory kill, and at the lines of that rank in the log",
        )
    if failures:
        return failures[0].error
    return GpufeedError(
        f"{by} ended with {how(code)} before any rank started",
        "ranks that start",
        "look at its lines in the log",
    )


def exit_codes(said: list[str]) -> dict[int, int]:
    """Return the exit status of each rank in torchrun's report, without those that torchrun itself ended."""
    found = {int(rank): int(code) for rank, code in RANK_AND_STATUS.findall("\n".join(said))}
    return {
        rank: code for rank, code in found.items() if code not in (-signal.SIGTERM, sigterm_handler.STATUS)
    }


def how(code: int) -> str:
    """Return an exit status in words."""
    if code >= 0:
        return f"status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
