"""GPUs in a `gres`, as Slurm spells it: gpu, gpu:2, gpu:H200 or gpu:H200:2, and several by commas.

The other options of sbatch for GPUs have what stands behind `gpu:` there, such as --gpus=H200:2.
"""

import re
from collections.abc import Sequence

from gpufeed.cluster.preflight.sbatch_words import values

# by option: whose GPUs its number counts
COUNTED = {
    "--gres": "node",
    "--gpus": "job",
    "-G": "job",
    "--gpus-per-node": "node",
    "--gpus-per-task": "task",
    "--gpus-per-socket": "socket",
}


def gpus_in(gres: object) -> list[tuple[str, int]]:
    """(model, number) of each entry that asks for GPUs, on each node; the model is "" where any will do."""
    entries = [entry.strip().split(":") for entry in str(gres or "").split(",")]
    return [model_and_number(rest) for kind, *rest in entries if kind == "gpu"]


def model_and_number(rest: list[str]) -> tuple[str, int]:
    """What stands behind `gpu`: nothing is one GPU, and so is a model without a number."""
    number = re.fullmatch(r"\d+", rest[-1]) if rest else None
    model = rest[:-1] if number else rest
    return (model[0] if model else ""), (int(number[0]) if number else 1)


def gpus_by_option(words: Sequence[str]) -> list[tuple[str, str, int]]:
    """(option, model, number) of each request for GPUs among the words of an sbatch line."""
    return [
        (option, model, number)
        for option, value in values(words, *COUNTED)
        for model, number in gpus_in(
            value if option == "--gres" else ",".join(f"gpu:{entry}" for entry in value.split(","))
        )
    ]
