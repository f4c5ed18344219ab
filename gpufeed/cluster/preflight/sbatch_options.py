"""The words of an sbatch line, the values of its options, and the GPUs that they ask for.

GPUs in a `gres` are spelt gpu, gpu:2, gpu:H200 or gpu:H200:2, and several by commas. The other options of
sbatch for GPUs have what stands behind `gpu:` there, such as --gpus=H200:2.

`slurm_extra` is the one text of a profile that goes into an sbatch line as it is. The executor quotes all
others, refuses --gres and --gpus there, and does not see the rest of them: it takes partition and tasks as
for a job without a GPU.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# by option: whose GPUs its number counts
GPUS_COUNTED_BY = {
    "--gres": "node",
    "--gpus": "job",
    "-G": "job",
    "--gpus-per-node": "node",
    "--gpus-per-task": "task",
    "--gpus-per-socket": "socket",
}


def words_of(text: object) -> list[str]:
    """The words of a text as a shell splits them; by blanks alone where a quote is never closed."""
    try:
        return shlex.split(str(text or ""))
    except ValueError:
        return str(text).split()


def option_values(words: Sequence[str], *names: str) -> Iterator[tuple[str, str]]:
    """(name, value) of each of these options: --name=VALUE, --name VALUE, -N VALUE and -NVALUE."""
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names:
            yield name, value if equals or place + 1 == len(words) else words[place + 1]
        elif word[:2] in names:
            yield word[:2], word[2:]


def gpus_in_gres(gres: object) -> list[tuple[str, int]]:
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
        for option, value in option_values(words, *GPUS_COUNTED_BY)
        for model, number in gpus_in_gres(
            value if option == "--gres" else ",".join(f"gpu:{entry}" for entry in value.split(","))
        )
    ]


def hidden_gpus(resources: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """(option, model, number of GPUs of the whole job) of each request in slurm_extra."""
    words = words_of(resources.get("slurm_extra"))
    nodes = int(resources.get("nodes") or 1)
    sockets = next((value for _, value in option_values(words, "--sockets-per-node") if value.isdecimal()), 1)
    times = {
        "job": 1,
        "node": nodes,
        "task": int(resources.get("tasks") or nodes * int(resources.get("tasks_per_node") or 1)),
        "socket": nodes * int(sockets),
    }
    return [
        (option, model, number * times[GPUS_COUNTED_BY[option]])
        for option, model, number in gpus_by_option(words)
    ]
