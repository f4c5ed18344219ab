"""A training is one process at first, however many devices it has: it starts its ranks itself."""

import os
from collections.abc import Mapping

from gpufeed.core.errors import GpufeedError


def check_one_task(environment: Mapping[str, str] = os.environ) -> None:
    """Raises GpufeedError in one of several tasks of srun or ranks of torchrun: each would train the whole.

    A batch script and the shell of salloc are one process, whatever number of tasks the job has.
    """
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks.isdigit() and int(tasks) > 1:
        raise GpufeedError(
            f"{tasks} tasks of Slurm, each of which would train the same model by itself",
            "one task, which starts a process for each of its GPUs, on other nodes of the job by srun itself",
            "leave srun out, and say trainer.devices=N, and trainer.num_nodes=M for several nodes",
        )
    ranks = environment.get("WORLD_SIZE", "1")
    if ranks != "1":
        raise GpufeedError(
            f"WORLD_SIZE={ranks} in the environment, as torchrun sets it for each of its processes",
            "one process, which starts a torchrun for its GPUs by itself",
            "leave torchrun out (else unset WORLD_SIZE), and say trainer.devices=N, and trainer.num_nodes=M "
            "for several nodes",
        )
