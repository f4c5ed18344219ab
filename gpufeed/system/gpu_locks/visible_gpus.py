"""Which GPUs of a node a job may choose from: what CUDA_VISIBLE_DEVICES leaves, read as CUDA reads it.

Slurm and users set it. Source: CUDA programming guide, environment variables.
"""

import re
from collections.abc import Callable, Sequence
from itertools import takewhile

from gpufeed.system.gpu_locks.gpu_listing import Gpu

VARIABLE = "CUDA_VISIBLE_DEVICES"
NUMBER = re.compile(r"[+-]?[0-9]+")  # "1gpu" is 1, too
NAMED = ("GPU-", "MIG-")


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
        find = {name: named(name, gpus) for name in keys}.get
    else:
        keys = list(takewhile(lambda index: index >= 0, map(number, entries)))
        find = by_number(gpus, order).get
    places = list(takewhile(bool, map(find, keys)))
    found = [gpu for here in places for gpu in here]
    twice = len(set(keys)) < len(keys) or len(set(found)) < len(found)
    return [] if twice else found


def number(entry: str) -> int:
    """The number at the beginning of an entry; -1 without one."""
    match = NUMBER.match(entry)
    return int(match[0]) if match else -1


def named(name: str, gpus: Sequence[Gpu]) -> list[Gpu]:
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
