"""The GPUs of this node as NVML lists them, and those that a job may choose from.

NVML is asked without CUDA, which then still follows its mask. CUDA_VISIBLE_DEVICES, which Slurm and users
set, is read as CUDA reads it under CUDA_DEVICE_ORDER=PCI_BUS_ID: its numbers are those of nvidia-smi. Source:
CUDA programming guide, environment variables.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile
from typing import Any

import pynvml

from gpufeed.system.nvml import ask, session

WORD = 64  # bits in each number of NVML's mask of CPUs
WORDS = 64  # room for 4,096 CPUs
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
NAMED = ("GPU-", "MIG-")


@dataclass(frozen=True)
class Gpu:
    """What a job can have for itself: a whole GPU, or a part of one (MIG), which is left as it is.

    uuid: as CUDA_VISIBLE_DEVICES takes it, "GPU-..." or "MIG-...". kind: the product's name, with the profile
    of a part. number: NVML's index of the GPU. busy: other processes compute on it. memory: its bytes. cpus:
    ids of the CPUs that are near, none where NVML does not tell.
    """

    uuid: str
    kind: str
    number: int
    part: bool = False
    busy: bool = False
    memory: int = 0
    cpus: frozenset[int] = frozenset()


def on_node() -> list[Gpu]:
    """All of this node that this process may open, in NVML's order; none where no driver answers."""
    with session():
        return [gpu for number in range(ask(pynvml.nvmlDeviceGetCount) or 0) for gpu in gpus_at(number)]


def gpus_at(number: int) -> Iterator[Gpu]:
    """The GPU at one of NVML's indices, or its parts; nothing where the GPU does not answer."""
    handle = ask(pynvml.nvmlDeviceGetHandleByIndex, number)
    whole = handle and ask(pynvml.nvmlDeviceGetUUID, handle)
    if not whole:
        return
    cpus = near_cpus(handle)
    if (ask(pynvml.nvmlDeviceGetMigMode, handle) or [0])[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        yield described(handle, whole, number, cpus)
        return
    for place in range(ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        part = ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place)
        if uuid := part and ask(pynvml.nvmlDeviceGetUUID, part):  # None in places of parts that were not made
            yield described(part, uuid, number, cpus, part=True)


def described(handle: Any, uuid: str, number: int, cpus: frozenset[int], part: bool = False) -> Gpu:
    """Return a GPU or a part, with what NVML says of it at this moment."""
    kind = ask(pynvml.nvmlDeviceGetName, handle) or "unknown"
    busy = bool(ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle))
    memory = ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return Gpu(uuid, kind, number, part, busy, memory.total if memory else 0, cpus)


def near_cpus(handle: Any) -> frozenset[int]:
    """Ids of the CPUs whose memory is near the GPU."""
    words = ask(pynvml.nvmlDeviceGetCpuAffinity, handle, WORDS) or ()
    return frozenset(
        place * WORD + bit for place, word in enumerate(words) for bit in range(WORD) if word >> bit & 1
    )


def visible(mask: str | None, gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return those of `gpus` that the mask leaves, in the mask's order.

    mask: indices, or UUIDs and unique beginnings of UUIDs. From the first entry on that is no GPU, CUDA
    ignores what follows; one that is named twice leaves none. None where nothing is set: those of the kind
    with the most memory are left, since a card for a display is not measured beside one for work.
    """
    if mask is None:
        largest = max(gpus, key=lambda gpu: gpu.memory, default=None)
        return [gpu for gpu in gpus if gpu.kind == largest.kind]
    entries = [entry.strip() for entry in mask.split(",")]
    alike = takewhile(lambda entry: entry.startswith(NAMED) == entries[0].startswith(NAMED), entries)
    found = list(chain.from_iterable(takewhile(bool, (gpus_named(entry, gpus) for entry in alike))))
    return found if len(set(found)) == len(found) else []


def gpus_named(entry: str, gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPU of that number, or its parts, or what alone has a UUID that begins so."""
    if not entry.startswith(NAMED):
        return [gpu for gpu in gpus if str(gpu.number) == entry]
    found = [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
    return found if len(found) == 1 else []
