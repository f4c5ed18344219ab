"""The commands that start ranks, without torch: torchrun on one node, and the srun step that starts it on
several.

A training is one process at first, however many devices it has, and starts its ranks itself. The job requests
its nodes without a task for each rank (gpufeed/workflow/resources.py), so that the step finds them free.
Sources: srun(1), scontrol(1).
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.system import gpu_locks
from gpufeed.system.sigterm_handler import scontrol


def check_one_task(environment: Mapping[str, str] = os.environ) -> None:
    """Raise GpufeedError in one of several tasks of srun or ranks of torchrun: each would train alone.

    A batch script and the shell of salloc are one process, whatever the job's number of tasks.
    """
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks.isdigit() and int(tasks) > 1:
        raise GpufeedError(
            f"{tasks} tasks of Slurm, each of which would train the same model by itself",
            "one task, which itself starts a process for each GPU, by srun on other nodes of the job",
            "leave srun out, and set trainer.devices=N, and trainer.num_nodes=M for several nodes",
        )
    ranks = environment.get("WORLD_SIZE", "1")
    if ranks != "1":
        raise GpufeedError(
            f"WORLD_SIZE={ranks} in the environment, as torchrun sets it for each of its processes",
            "one process, which itself starts torchrun for its GPUs",
            "leave torchrun out (else unset WORLD_SIZE), and set trainer.devices=N, and trainer.num_nodes=M "
            "for several nodes",
        )


GRACE_S = 40.0  # from SIGTERM to SIGKILL; torchrun itself gives its ranks 30 s
KILLED_S = 5.0  # for the kernel to end a killed process
ALONE = ("--standalone", "--local-addr=localhost")


def torchrun_command(devices: int, folder: Path, rendezvous: tuple[str, ...] = ALONE) -> list[str]:
    """Return the command that starts a rank for each device of this node and prefixes their output.

    rendezvous: how they meet the ranks of other nodes; by default there are none.
    """
    torchrun = [sys.executable, "-m", "torch.distributed.run", *rendezvous, f"--nproc-per-node={devices}"]
    words = ["--role=rank", "--tee=3", f"--log-dir={folder / 'logs'}"]
    return [*torchrun, *words, "-m", "gpufeed.training.distributed.rank", str(folder)]


def torchrun_environment(threads: int | None = None) -> dict[str, str]:
    """Return this process's environment and import path, without the variables of a Slurm job's tasks.

    threads: of torch in each rank; None keeps the environment's number.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PMI_"))}
    path = os.pathsep.join(entry for entry in sys.path if entry)
    # the rank in the whole training; torchrun's default is that on its node
    prefix = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[${role_name}${rank}]:"}
    own = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    return kept | {"PYTHONPATH": path} | prefix | own


def stop_torchrun(process: subprocess.Popen) -> None:
    """End a process and all that it started, by SIGTERM, then by SIGKILL, unless it has ended already."""
    if process.poll() is not None:
        return
    family = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        # if an exception from a signal handler left Popen's lock taken
        with suppress(subprocess.TimeoutExpired):
            process.wait(KILLED_S)
    for member in family:
        with suppress(psutil.NoSuchProcess):
            member.kill()


ADDRESS = re.compile(r"^NodeName=(\S+).*? NodeAddr=(\S+)", re.MULTILINE)


def nodes_of_job(count: int) -> dict[str, str]:
    """Return the address of each of the first `count` nodes of this job, in Slurm's order.

    Raises Skip outside of a job and in one with fewer nodes, GpufeedError if Slurm does not answer.
    """
    job, wanted = os.environ.get("SLURM_JOB_ID", ""), f"The cell trains on {count} nodes"
    asks = f"`snakemake --profile slurm`, or in `salloc --nodes={count} --ntasks-per-node=1`"
    if not job or not shutil.which("srun"):
        lacks = "this process is not in a job of Slurm" if not job else "this node has no command srun"
        raise Skip(f"{wanted}, which Slurm's srun starts, and {lacks}: run it by {asks}.")
    names = re.search(r" NodeList=(\S+)", scontrol("-o", "show", "job", job) or "")
    found = dict(ADDRESS.findall((names and scontrol("-o", "show", "node", names[1])) or ""))
    if not found:
        raise GpufeedError(
            f"no answer of scontrol about the nodes of job {job}", "their names and addresses", "see the log"
        )
    if len(found) < count:
        raise Skip(f"{wanted}, and job {job} of Slurm has {len(found)} ({names[1]}): run it by {asks}.")
    return dict(list(found.items())[:count])


def srun_command(count: int, devices: int, folder: Path) -> list[str]:
    """Return the srun command with one task a node, which has all its resources; all end if one fails.

    devices: of each node. folder: on a disk that all nodes see. Raises as nodes_of_job does.
    """
    nodes = nodes_of_job(count)
    where = [f"--jobid={os.environ['SLURM_JOB_ID']}", "--overlap", f"--nodelist={','.join(nodes)}"]
    tasks = [f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", "--cpu-bind=none", "--mpi=none"]
    ends = [
        "--kill-on-bad-exit=1",
        "--input=0",
    ]  # its input ends with this process, which ends the first task
    task = [sys.executable, "-m", "gpufeed.training.distributed.node_task"]
    words = [str(folder), next(iter(nodes.values())), str(count), str(devices)]
    return ["srun", *where, *tasks, *ends, *task, *words]


def srun_environment() -> dict[str, str]:
    """Return the variables that srun needs beside torchrun's: Slurm's configuration and the locked GPUs."""
    return {name: os.environ[name] for name in ("SLURM_CONF",) if name in os.environ} | gpu_locks.hand_on()


def note_end_request(folder: Path, place: int) -> None:
    """Note in the folder that Slurm asked this node's part of the step to end."""
    (folder / f"asked-{place}").touch()


def was_end_requested(folder: Path, count: int) -> bool:
    """Return whether Slurm asked all nodes to end; after a failed rank, that rank's node was not asked."""
    return all((folder / f"asked-{place}").exists() for place in range(count))
