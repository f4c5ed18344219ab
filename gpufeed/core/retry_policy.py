"""Which documents of a measurement are final. Standard library only: used while planning.

A finished repeat, sweep or benchmark is final, and so is a passed gate. A failed document, or one with a
failed point or row, is tried again by the next run. Other documents are final only on the node that planned
them, since another node may have the GPU or package that was missing. These are skipped documents, those with
a skipped point or row, and an extension without the CUDA kernels that were wanted. With device `auto` this
includes all that was made without a CUDA GPU.

A job that Snakemake submits to a cluster runs on another node than the planner. So the planner puts its name
into the environment, which its jobs inherit. Slurm's own SLURM_SUBMIT_HOST is not the same. For every
allocation made on the login node it names that node, wherever snakemake was started.
"""

import json
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gpufeed.core.file_writes import write_whole

PLANNED_ON = "GPUFEED_PLANNED_ON"
PARTS = ("rows", "points")  # of a benchmark and of a sweep, each with its own status
LACKING = {"skipped", "refused", "partial"}


def announce_planning_node(planning: bool) -> None:
    """Put the planner's name into the environment of this process's jobs.

    planning: whether this is the user's snakemake, and not one that it runs a job with. If a job's
    environment lacks the name (sbatch --export=NONE), Slurm's submit host is used.
    """
    if planning:
        os.environ[PLANNED_ON] = platform.node()
    elif PLANNED_ON not in os.environ:
        os.environ[PLANNED_ON] = os.environ.get("SLURM_SUBMIT_HOST") or platform.node()


def planning_node() -> str:
    """Return the node on which the user started the workflow, or else this host."""
    return os.environ.get(PLANNED_ON) or platform.node()


def counter(record: str | Path) -> Path:
    """Return the file that counts the attempts at a record; no rule's output, so it is never deleted."""
    return Path(record).with_suffix(".attempt")


def mark(record: str | Path) -> Path:
    """Return the file with the number of an attempt that is outdated."""
    return Path(record).with_suffix(".outdated")


def attempt(
    record: str | Path, node: str, device: str = "auto", first: bool = False, keep: bool = False
) -> int:
    """Return the number of the attempt that the record should come from, counted from 1.

    node: the one that plans. device: as in the config; not `auto` for what does not depend on a GPU. first:
    whether the run has not asked before, so that a record that is not there was lost. keep: whether to note
    for the job, at the first time, that the last attempt is outdated.

    It is the attempt in the record if that is final, and one more if not. The workflow passes it to the job
    as a parameter, so that a change runs the job again. Snakemake keeps the number that it got while
    planning, deletes the record and asks again for the job. Counter and mark then have to give the same
    number, or the next run would measure again.
    """
    last, final = _number(counter(record)), not first
    try:
        data = json.loads(Path(record).read_text())
        last, final = int(data["attempt"]), _final(data, node, device)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError):  # damaged: run the job again
        last, final = last or 1, False
    if last and not final and first and keep:
        with suppress(OSError):
            outdate(record, last)
    outdated = _number(mark(record))
    return last if last and final and last != outdated else max(last, outdated) + 1


def ended(record: str | Path, number: int) -> None:
    """Record that attempt `number` has written its document."""
    write_whole(counter(record), f"{number}\n")


def outdate(record: str | Path, number: int) -> None:
    """Record that the document of attempt `number` is not valid here, so that the next run makes it again."""
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
