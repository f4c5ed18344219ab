"""The name of the node that plans a run. Standard library only: the workflow imports this while it plans."""

import os
import platform


def node_name() -> str:
    """The node on which the user started the workflow: Slurm's submit host inside a job, else this host."""
    return os.environ.get("SLURM_SUBMIT_HOST") or platform.node()
