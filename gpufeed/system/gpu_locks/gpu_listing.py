"""The GPUs of this node as NVML lists them, without CUDA, whose mask is thereby still open."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pynvml

from gpufeed.system.nvml import ask

WORD = 64  # bits in each number of NVML's mask of CPUs
WORDS = 64  # room for 4,096 CPUs


@dataclass(frozen=True)
class Gpu:
    """What a job can have for itself: a whole GPU, or a part of one (MIG), which is left as it is.

    uuid: as CUDA_VISIBLE_DEVICES takes it, "GPU-..." or "MIG-...". kind: the product's name, with the profile
    of a part. number: NVML's index of the GPU. names: other names of a part. busy: other processes compute
    on it. cpus: ids of the CPUs that are near, none where NVML does not tell.
    """

    uuid: str
    kind: str
    number: int
    part: bool = False
    names: tuple[str, ...] = ()
    busy: bool = False
    cpus: frozenset[int] = frozenset()


def on_node() -> list[Gpu]:
    """All of this node that this process may open, in NVML's order; none where no driver answers."""
    if ask(lambda: pynvml.nvmlInit() or True) is None:
        return []
    try:
        return [gpu for number in range(ask(pynvml.nvmlDeviceGetCount) or 0) for gpu in at(number)]
    finally:
        ask(pynvml.nvmlShutdown)


def at(number: int) -> Iterator[Gpu]:
    """The GPU at one of NVML's indices, or its parts; nothing where the GPU does not answer."""
    handle = ask(pynvml.nvmlDeviceGetHandleByIndex, number)
    whole = handle and ask(pynvml.nvmlDeviceGetUUID, handle)
    if not whole:
        return
    cpus = near(handle)
    if (ask(pynvml.nvmlDeviceGetMigMode, handle) or [0])[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        yield Gpu(whole, kind_of(handle), number, busy=computes(handle), cpus=cpus)
        return
    for place in range(ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        part = ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place)
        if part is None:  # places of parts that were not made
            continue
        uuid = ask(pynvml.nvmlDeviceGetUUID, part)
        inside = ask(pynvml.nvmlDeviceGetGpuInstanceId, part)
        within = ask(pynvml.nvmlDeviceGetComputeInstanceId, part)
        older = f"MIG-{whole}/{inside}/{within}"  # its name before drivers of version 470
        if uuid:
            yield Gpu(uuid, kind_of(part), number, True, (older,), computes(part), cpus)


def kind_of(handle: Any) -> str:
    return ask(pynvml.nvmlDeviceGetName, handle) or "unknown"


def computes(handle: Any) -> bool:
    """Whether any process computes there at this moment."""
    return bool(ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle))


def near(handle: Any) -> frozenset[int]:
    """Ids of the CPUs whose memory is near the GPU."""
    words = ask(pynvml.nvmlDeviceGetCpuAffinity, handle, WORDS) or ()
    return frozenset(
        place * WORD + bit for place, word in enumerate(words) for bit in range(WORD) if word >> bit & 1
    )
