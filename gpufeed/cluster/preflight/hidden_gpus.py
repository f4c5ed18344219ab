"""GPUs that `slurm_extra` asks for: the one text of a profile that goes into an sbatch line as it is.

The executor quotes all others, refuses --gres and --gpus there, and does not see the rest of them: it takes
partition and tasks as for a job without a GPU.
"""

from collections.abc import Mapping
from typing import Any

from gpufeed.cluster.preflight.gres import COUNTED, gpus_by_option
from gpufeed.cluster.preflight.sbatch_words import values, words_of


def hidden_gpus(resources: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """(option, model, number of GPUs of the whole job) of each request in slurm_extra."""
    words = words_of(resources.get("slurm_extra"))
    nodes = int(resources.get("nodes") or 1)
    sockets = next((value for _, value in values(words, "--sockets-per-node") if value.isdecimal()), 1)
    times = {
        "job": 1,
        "node": nodes,
        "task": int(resources.get("tasks") or nodes * int(resources.get("tasks_per_node") or 1)),
        "socket": nodes * int(sockets),
    }
    return [
        (option, model, number * times[COUNTED[option]]) for option, model, number in gpus_by_option(words)
    ]
