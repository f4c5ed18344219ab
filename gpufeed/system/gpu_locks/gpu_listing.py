"""The GPUs of this node as NVML lists them, and those that a job may choose from.

NVML is asked without CUDA, which then still follows its mask. What CUDA_VISIBLE_DEVICES leaves is read as
CUDA reads it: Slurm and users set it. Source: CUDA programming guide, environment variables.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import pynvml

from gpufeed.system.nvml import ask, session

WORD = 64  # bits in each number of NVML's mask of CPUs
WORDS = 64  # room for 4,096 CPUs
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
NUMBER = re.compile(r"[+-]?[0-9]+")  # "1gpu" is 1, too
NAMED = ("GPU-", "MIG-")


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


def near_cpus(handle: Any) -> frozenset[int]:
    """Ids of the CPUs whose memory is near the GPU."""
    words = ask(pynvml.nvmlDeviceGetCpuAffinity, handle, WORDS) or ()
    return frozenset(
        place * WORD + bit for place, word in enumerate(words) for bit in range(WORD) if word >> bit & 1
    )


def visible(mask: str | None, gpus: Sequence[Gpu], order: Callable[[], Sequence[str]]) -> list[Gpu]:
    """Those of `gpus` that the mask leaves, in the mask's order.

    mask: indices, or UUIDs and unique beginnings of UUIDs; None where nothing is set. From the first entry on
    that is no GPU, CUDA ignores what follows; one that is named twice leaves none. gpus: in NVML's order.
    order: gives CUDA's, asked for only where kinds differ, since an index is the same in both where they
    do not. Without a mask, GPUs of other kinds than CUDA's first are left out: numbers of one run are to
    come from one kind.
    """
    if mask is None:
        return of_one_kind(gpus, order)
    entries = [entry.strip() for entry in mask.split(",")]
    if entries[0].startswith(NAMED):
        keys = list(takewhile(lambda name: name.startswith(NAMED), entries))
        find = {name: gpus_named(name, gpus) for name in keys}.get
    else:
        keys = list(takewhile(lambda index: index >= 0, map(leading_number, entries)))
        find = by_number(gpus, order).get
    places = list(takewhile(bool, map(find, keys)))
    found = [gpu for here in places for gpu in here]
    twice = len(set(keys)) < len(keys) or len(set(found)) < len(found)
    return [] if twice else found


def leading_number(entry: str) -> int:
    """The number at the beginning of an entry; -1 without one."""
    match = NUMBER.match(entry)
    return int(match[0]) if match else -1


def gpus_named(name: str, gpus: Sequence[Gpu]) -> list[Gpu]:
    """The GPU whose UUID begins so, or the part with this older name; none where several do."""
    found = [gpu for gpu in gpus if name in (gpu.uuid, *gpu.names)]
    found = found or [gpu for gpu in gpus if gpu.uuid.startswith(name)]
    return found if len(found) == 1 else []


def by_number(gpus: Sequence[Gpu], order: Callable[[], Sequence[str]]) -> dict[int, list[Gpu]]:
    """CUDA's index -> the GPU, or its parts."""
    whole: dict[int, list[Gpu]] = {}
    for gpu in gpus:
        whole.setdefault(gpu.number, []).append(gpu)
    if len({gpu.kind for gpu in gpus}) < 2:
        return whole
    ranks = [here for uuid in order() for here in whole.values() if any(gpu.uuid[4:] == uuid for gpu in here)]
    return dict(enumerate(ranks)) or whole


def of_one_kind(gpus: Sequence[Gpu], order: Callable[[], Sequence[str]]) -> list[Gpu]:
    """Those of the kind that CUDA counts first: a card for a display is not measured beside one for work."""
    if len({gpu.kind for gpu in gpus}) < 2:
        return list(gpus)
    first = next(iter(order()), None)
    kind = next((gpu.kind for gpu in gpus if gpu.uuid[4:] == first), gpus[0].kind)
    return [gpu for gpu in gpus if gpu.kind == kind]
