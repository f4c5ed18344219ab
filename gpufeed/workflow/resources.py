"""Cores and GPUs of the jobs; slurm/config.yaml has their memory and run time under Slurm."""

import re
import shlex
import sys
from collections.abc import Callable
from typing import Any

from gpufeed.core.cells import Cell
from gpufeed.workflow.gates import Gates
from gpufeed.workflow.run import Run


class JobResources:
    """What jobs request from Snakemake and Slurm. workflow: Snakemake's, with its executor and limits."""

    def __init__(self, run: Run, gates: Gates, workflow: Any):
        self.run, self.gates, self.workflow = run, gates, workflow
        self.shares = self.shares_given()

    def submitted(self) -> bool:
        """Return whether jobs run elsewhere: in a run that submits them, and in each submitted run.

        Evaluated at each call, since Snakemake does not know its executor while it reads the rules.
        """
        return self.workflow.remote_exec or not self.workflow.local_exec

    def gpus_given(self) -> int | None:
        """Return N of `--resources gpu=N`; None without it."""
        return getattr(self.workflow.global_resources.get("gpu"), "value", None)

    def shares_given(self) -> int:
        """Return how many jobs with a GPU share the cores of this node: `--resources gpu=N`.

        1 without that option, with fewer cores, and for jobs that are submitted to a cluster.
        """
        given = self.gpus_given()
        total = self.workflow.resource_settings.cores
        if not (self.run.gpu_jobs and given and total) or self.submitted():
            return 1
        return max(1, min(int(given), total // (self.run.config["cores_per_cell"] or 1)))

    def options(self) -> list[str]:
        """Return Snakemake's options for this run's cores and GPUs, or the profiles that submit its jobs."""
        if self.submitted():
            words = "\0".join(sys.argv)
            return [
                f"--profile {shlex.quote(name)}" for name in re.findall(r"\0--profile[\0=]([^\0]+)", words)
            ]
        if (total := self.workflow.resource_settings.cores) is None:
            return []
        gpus = self.gpus_given()
        return [f"--cores {total}", *([] if gpus is None else [f"--resources gpu={gpus}"])]

    def cores_of_job(self, wildcards: Any, workers: int | str = 0, share: int = 1) -> int:
        """Return the CPU cores of a job: all that the run has, or one of `share` parts.

        A job that is submitted to a cluster is alone on a node that is unknown while planning. It gets
        cores_per_job, and at least as many as its worker processes. Rules pass the number twice. Snakemake
        limits `threads` to the login node's cores, and Slurm gets cpus_per_task.
        """
        total = self.workflow.resource_settings.cores  # None with an executor that counts jobs
        if self.submitted() or total is None:
            return max(self.run.config["cores_per_job"], 0 if workers == "auto" else workers)
        return -(-total // share)

    def cores_of_extension(self, wildcards: Any) -> int:
        """Return few cores: there are few files to compile, and each takes a GiB or two of memory."""
        return min(4, self.cores_of_job(wildcards))

    def cores_of_cell(self, wildcards: Any) -> int:
        """Return the cores of a measurement on a node: all, or a share of them for each of its GPUs.

        On a cluster, each GPU of a cell has the cores of a job with one GPU, for its rank and workers.
        """
        cell, per_cell = self.run.cell_of(wildcards), self.run.config["cores_per_cell"]
        if self.submitted():
            given = per_cell or self.cores_of_job(wildcards, cell.cores_wanted) * cell.devices
            return max(given, cell.cores or 0)
        given = per_cell or self.cores_of_job(wildcards, cell.cores_wanted) // self.shares
        given = max(given, cell.cores or 0)
        return given if self.shares == 1 else min(given * cell.devices, self.cores_of_job(wildcards))

    def cores_of_gate(self, wildcards: Any) -> int:
        """Return at most half of the cores: nothing is timed, so two or more loaders may run at once."""
        workers = self.gates.settings_judged(wildcards)["workers"]
        return self.cores_of_job(wildcards, workers, share=max(2, self.shares))

    def cores_of_evaluation(self, wildcards: Any) -> int:
        """Return at most half of the cores: nothing is timed."""
        workers = self.run.cell_of(wildcards).workers
        return self.cores_of_job(wildcards, workers, share=max(2, self.shares))

    def cores_of_prediction(self, wildcards: Any) -> int:
        """Return at most half of the cores: nothing is timed, and no worker runs."""
        return self.cores_of_job(wildcards, share=max(2, self.shares))

    def cores_of_build(self, wildcards: Any) -> int:
        """Return the cores of a measurement, even if one core decodes: nothing may run beside it."""
        return self.run.config["cores_per_cell"] or self.cores_of_job(wildcards)

    def gpus_of_cell(self, wildcards: Any) -> int | None:
        """Return the GPUs of a training: those of all of its processes on this node.

        Snakemake limits it to `--resources gpu=N`; the job then finds what the node has. Slurm would take it
        for the GPUs of all nodes together, and spread them freely. So a job on several nodes has `gres`
        instead.
        """
        several = self.submitted() and self.spreads(wildcards)
        return None if several else self.run.gpu_jobs * self.run.cell_of(wildcards).devices

    def spreads(self, wildcards: Any) -> bool:
        """Return whether the cell is trained on several nodes."""
        return self.run.cell_of(wildcards).nodes > 1

    def of_sweep(self, name: str) -> str | None:
        """Return the profile's default resource for jobs with a GPU: sweep_NAME, or NAME; None without both.

        A key that is left empty counts as missing: YAML reads `sweep_gpu_model:` as None.
        """
        defaults = self.workflow.resource_settings.default_resources or {}
        given = [str(defaults[key].raw).strip("'\"") for key in (f"sweep_{name}", name) if key in defaults]
        return next((value for value in given if value not in ("", "None")), None)

    def of_gpu_jobs(self, takes: Callable[[Any], bool] = lambda wildcards: True) -> dict[str, Any]:
        """Return gpu_model and constraint of jobs that take a GPU, the same for all of them.

        Where jobs run at once on this node, add the number of shares of its cores
        (gpufeed/system/gpu_locks/taking.py). Default resources would apply to every rule, and Slurm's
        executor requests a GPU for any gpu_model without `gpu`.
        """
        given = {name: self.of_sweep(name) for name in ("gpu_model", "constraint") if self.run.gpu_jobs}
        wanted = {
            name: lambda wildcards, value=value: value if takes(wildcards) else None
            for name, value in given.items()
            if value
        }
        return wanted | ({"shares": self.shares} if self.shares > 1 else {})

    def gres_of_cell(self, cell: Cell) -> str | None:
        """Return the GPUs of each of several nodes, in Slurm's notation."""
        model = filter(None, [self.of_sweep("gpu_model")])
        return ":".join(["gpu", *model, str(cell.devices)]) if self.run.gpu_jobs else None

    def of_trainings(self) -> dict[str, Any]:
        """Return what a training requests, besides cores and `gpu`.

        On several nodes the job is one process on the first node, which starts one on each by srun
        (gpufeed/training/distributed/rank_commands.py). Slurm's executor supports that only for MPI jobs,
        which it does not wrap in a job step. Such a job has one task for each node, and none for a GPU.
        """
        several = {
            "tasks": lambda cell: cell.nodes,
            "tasks_per_gpu": lambda cell: 0,
            "mpi": lambda cell: "srun",
            "gres": self.gres_of_cell,
        }
        if not any(cell.nodes > 1 for cells in self.run.plan.cells.values() for cell in cells.values()):
            several = {}
        wanted = {
            name: lambda wildcards, value=value: (
                value(self.run.cell_of(wildcards)) if self.spreads(wildcards) else None
            )
            for name, value in several.items()
        }
        wanted |= self.of_gpu_jobs()
        if (model := wanted.get("gpu_model")) is not None:  # it is in gres
            wanted["gpu_model"] = lambda wildcards: None if self.spreads(wildcards) else model(wildcards)
        return wanted | {"nodes": lambda wildcards: self.run.cell_of(wildcards).nodes}
