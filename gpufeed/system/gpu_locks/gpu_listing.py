"""The GPUs of this node by NVML, and those that a job may choose from.

NVML is asked without CUDA, so that CUDA can still read its mask later. CUDA_VISIBLE_DEVICES, which Slurm and
users set, is read as CUDA does with CUDA_DEVICE_ORDER=PCI_BUS_ID: numbers are those of nvidia-smi. Source:
CUDA programming guide, environment variables.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile
from typing import Any

import pynvml

from gpufeed.system.nvml import ask, session

WORD = 64  # bits in each word of NVML's CPU mask
WORDS = 64  # room for 4,096 CPUs
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
NAMED = ("GPU-", "MIG-")


@dataclass(frozen=True)
class Gpu:
    """A GPU that a job can take: a whole one, or a part of one (MIG).

    uuid: as in CUDA_VISIBLE_DEVICES, "GPU-..." or "MIG-...". kind: product name, with the profile of a part.
    number: NVML's index of the GPU. busy: other processes compute on it. memory: in bytes. cpus: ids of the
    CPUs near it, if NVML knows them.
    """

    uuid: str
    kind: str
    number: int
    part: bool = False
    busy: bool = False
    memory: int = 0
    cpus: frozenset[int] = frozenset()


def on_node() -> list[Gpu]:
    """Return the GPUs that this process may open, in NVML's order; none without a driver."""
    with session():
        return [gpu for number in range(ask(pynvml.nvmlDeviceGetCount) or 0) for gpu in gpus_at(number)]


def gpus_at(number: int) -> Iterator[Gpu]:
    """Yield the GPU at one of NVML's indices, or its parts; nothing if the GPU does not answer."""
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
        if uuid := part and ask(pynvml.nvmlDeviceGetUUID, part):  # None for unused slots
            yield described(part, uuid, number, cpus, part=True)


def described(handle: Any, uuid: str, number: int, cpus: frozenset[int], part: bool = False) -> Gpu:
    """Return a GPU or a part with its present state."""
    kind = ask(pynvml.nvmlDeviceGetName, handle) or "unknown"
    busy = bool(ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle))
    memory = ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return Gpu(uuid, kind, number, part, busy, memory.total if memory else 0, cpus)


def near_cpus(handle: Any) -> frozenset[int]:
    """Return the ids of the CPUs whose memory is near the GPU."""
    words = ask(pynvml.nvmlDeviceGetCpuAffinity, handle, WORDS) or ()
    return frozenset(
        place * WORD + bit for place, word in enumerate(words) for bit in range(WORD) if word >> bit & 1
    )


def visible(mask: str | None, gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs that the mask allows, in the mask's order.

    mask: indices, or UUIDs and their unique prefixes. Like CUDA, ignore everything from the first invalid
    entry on; a duplicate entry leaves none. Without a mask (None), return the GPUs of the kind with the most
    memory. So a display card is not measured beside a compute card.
    """
    if mask is None:
        largest = max(gpus, key=lambda gpu: gpu.memory, default=None)
        return [gpu for gpu in gpus if gpu.kind == largest.kind]
    entries = [entry.strip() for entry in mask.split(",")]
    alike = takewhile(lambda entry: entry.startswith(NAMED) == entries[0].startswith(NAMED), entries)
    found = list(chain.from_iterable(takewhile(bool, (gpus_named(entry, gpus) for entry in alike))))
    return found if len(set(found)) == len(found) else []


def gpus_named(entry: str, gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPU with that number, or its parts, or the only one whose UUID has that prefix."""
    if not entry.startswith(NAMED):
        return [gpu for gpu in gpus if str(gpu.number) == entry]
    found = [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
    return found if len(found) == 1 else []
