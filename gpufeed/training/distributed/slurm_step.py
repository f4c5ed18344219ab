"""A training on several nodes of a Slurm job: which nodes, and the step that starts torchrun on each.

The job asks for its nodes without a task of its own for the training (gpufeed/workflow/resources.py), so that
the step finds them free. Sources: srun(1), scontrol(1).
"""

import os
import re
import shutil
import sys
from pathlib import Path

from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.system import gpu_locks
from gpufeed.system.sigterm_handler import scontrol

ADDRESS = re.compile(r"^NodeName=(\S+).*? NodeAddr=(\S+)", re.MULTILINE)


def nodes_of_job(count: int) -> dict[str, str]:
    """The first `count` nodes of this job, in Slurm's order -> the address of each.

    Raises Skip outside of a job and in one with fewer nodes, GpufeedError where Slurm does not tell them.
    """
    job, wanted = os.environ.get("SLURM_JOB_ID", ""), f"The cell trains on {count} nodes"
    asks = f"`snakemake --profile slurm`, or in `salloc --nodes={count} --ntasks-per-node=1`"
    if not job or not shutil.which("srun"):
        lacks = "no job of Slurm is around this process" if not job else "this node has no command srun"
        raise Skip(f"{wanted}, which Slurm's srun starts, and {lacks}: run it by {asks}.")
    names = re.search(r" NodeList=(\S+)", scontrol("-o", "show", "job", job) or "")
    found = dict(ADDRESS.findall((names and scontrol("-o", "show", "node", names[1])) or ""))
    if not found:
        raise GpufeedError(
            f"no answer of scontrol on the nodes of job {job}", "their names and addresses", "see the log"
        )
    if len(found) < count:
        raise Skip(f"{wanted}, and job {job} of Slurm has {len(found)} ({names[1]}): run it by {asks}.")
    return dict(list(found.items())[:count])


def step(count: int, devices: int, folder: Path) -> list[str]:
    """srun with one task a node, all of what the job has there, and an end of all with the first that fails.

    devices: of each node. folder: on a disk that all nodes see. Errors: as in nodes_of_job.
    """
    nodes = nodes_of_job(count)
    where = [f"--jobid={os.environ['SLURM_JOB_ID']}", "--overlap", f"--nodelist={','.join(nodes)}"]
    tasks = [f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", "--cpu-bind=none", "--mpi=none"]
    ends = ["--kill-on-bad-exit=1", "--input=0"]  # its input ends with this process, and ends the first task
    told = [str(folder), next(iter(nodes.values())), str(count), str(devices)]
    return [
        "srun",
        *where,
        *tasks,
        *ends,
        sys.executable,
        "-m",
        "gpufeed.training.distributed.node_task",
        *told,
    ]


def environment() -> dict[str, str]:
    """What srun needs beside torchrun's: Slurm's configuration, and which GPUs are taken already."""
    return {name: os.environ[name] for name in ("SLURM_CONF",) if name in os.environ} | gpu_locks.hand_on()


def note_asked(folder: Path, place: int) -> None:
    """Leaves word that Slurm asked this node's part of the step to end."""
    (folder / f"asked-{place}").touch()


def was_asked(folder: Path, count: int) -> bool:
    """Whether it asked all of them: where a rank failed, its own node has ended before."""
    return all((folder / f"asked-{place}").exists() for place in range(count))
