"""Which documents of a measurement are final. Standard library only: used while planning.

A finished repeat stays, and so do a loader that passed the gate, a sweep and a benchmark. One that failed,
as a whole or in one of its points or rows, is tried again by the next run. Another node may have
the GPU or the package that was lacking. So these are final only on the node that planned them: a document
that was skipped, one with a point or row that was, an extension without the CUDA kernels that were wanted,
and under device `auto` what was made without a CUDA GPU.

A job that Snakemake submits to a cluster runs on another node than the planner. So the planner leaves its
name in the environment, which its jobs inherit. Slurm's own SLURM_SUBMIT_HOST is not that: it is the login
node for every allocation made there, on whatever node snakemake was then started.
"""

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path

from gpufeed.core.file_writes import write_whole

PLANNED_ON = "GPUFEED_PLANNED_ON"
PARTS = ("rows", "points")  # of a benchmark and of a sweep: each has a status of its own
LACKING = {"skipped", "refused", "partial"}


def announce_planning_node(planning: bool) -> None:
    """Makes the planner's name known to the jobs of this process.

    planning: this is the snakemake that the user started, and not one that it runs a job with. Where a
    job's environment lacks the name (sbatch with --export=NONE), Slurm's submit host is used.
    """
    if planning:
        os.environ[PLANNED_ON] = platform.node()
    elif PLANNED_ON not in os.environ:
        os.environ[PLANNED_ON] = os.environ.get("SLURM_SUBMIT_HOST") or platform.node()


def planning_node() -> str:
    """The node on which the user started the workflow: the planner of this job, else this host."""
    return os.environ.get(PLANNED_ON) or platform.node()


def counter(record: str | Path) -> Path:
    """Where the number of attempts at a record is kept: no output of a rule, so that it outlives them all."""
    return Path(record).with_suffix(".attempt")


def mark(record: str | Path) -> Path:
    """Where the number of an attempt is kept that no longer holds."""
    return Path(record).with_suffix(".outdated")


def attempt(record: str | Path, node: str, device: str = "auto") -> int:
    """Number of the attempt that the record should come from, from 1 on.

    node: the one that plans. device: as in the config; another than `auto` for what no GPU would change.

    It equals the attempt in the record while that is final, and is one more where it is not. The
    workflow passes it to the job as a parameter, so that a change runs the job again; Snakemake has
    deleted the record by then, and the counter still gives the same number.
    """
    try:
        data = json.loads(Path(record).read_text())
        final = _final(data, node, device) and _number(mark(record)) != data["attempt"]
        return data["attempt"] if final else data["attempt"] + 1
    except FileNotFoundError:
        return _number(counter(record)) + 1
    except (OSError, ValueError, KeyError, TypeError):
        return _number(counter(record)) + 2  # damaged: whatever wrote it, run the job again


def ended(record: str | Path, number: int) -> None:
    """Writes down that attempt `number` has left its record."""
    write_whole(counter(record), f"{number}\n")


def outdate(record: str | Path, number: int) -> None:
    """Writes down that the record of attempt `number` does not hold here: the next run makes it again."""
    write_whole(mark(record), f"{number}\n")


def _final(data: Mapping, node: str, device: str) -> bool:
    found = {data["status"], *(part["status"] for name in PARTS for part in data.get(name, ()))}
    if "failed" in found:
        return False
    if data["planned_on"] == node:
        return True
    return not found & LACKING and (device != "auto" or data["environment"]["gpu"] is not None)


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0
