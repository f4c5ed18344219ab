"""The name of the node that plans a run. Standard library only: the workflow imports this while it plans.

Records remember it, since what one node lacks another may have. A job that Snakemake submits to a cluster
runs elsewhere, so the planner leaves its name in the environment, which its jobs inherit. Slurm's own
SLURM_SUBMIT_HOST does not tell: it is the login node for every allocation made there, on whatever node
snakemake was then started.
"""

import os
import platform

VARIABLE = "GPUFEED_PLANNED_ON"


def announce(planning: bool) -> None:
    """Makes the planner's name known to the jobs of this process.

    planning: this is the snakemake that the user started, and not one that it runs a job with. Where a
    job's environment lacks the name (sbatch with --export=NONE), Slurm's submit host stands in for it.
    """
    if planning:
        os.environ[VARIABLE] = platform.node()
    elif VARIABLE not in os.environ:
        os.environ[VARIABLE] = os.environ.get("SLURM_SUBMIT_HOST") or platform.node()


def shows_gpu() -> bool:
    """Whether NVIDIA's driver has a device file here, or that of WSL."""
    return any(os.path.exists(path) for path in ("/dev/nvidiactl", "/dev/dxg"))


def node_name() -> str:
    """The node on which the user started the workflow: the planner of this job, else this host."""
    return os.environ.get(VARIABLE) or platform.node()
