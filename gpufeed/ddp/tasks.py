"""A training is one task of a Slurm job, however many devices it has."""

import os
from collections.abc import Mapping

from gpufeed.errors import GpufeedError


def check_one_task(environment: Mapping[str, str] = os.environ) -> None:
    """Raises GpufeedError in one of several tasks that srun started: each would train the whole by itself.

    A batch script and the shell of salloc are one process, whatever number of tasks the job has.
    """
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks.isdigit() and int(tasks) > 1:
        raise GpufeedError(
            f"{tasks} tasks of Slurm, each of which would train the same model by itself",
            "one task, which starts a process for each of its GPUs, on other nodes of the job by srun itself",
            "leave srun out, and say trainer.devices=N, and trainer.num_nodes=M for several nodes",
        )
