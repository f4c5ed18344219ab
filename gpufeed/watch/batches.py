"""Look into batches of any type: samples, bytes and copies of them; and the random states that a
fetch changes.
"""

import copy
import random
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

PLAIN = (str, bytes, int, float, complex, bool, type(None))  # immutable values
DEEPEST = 8  # levels of containers to look into
FIRST_LEAVES = 64  # values to search for the first array, at every step


def leaves(batch: Any, depth: int = DEEPEST) -> Iterator[Any]:
    """Yield the values of a batch; containers and objects with attributes are opened."""
    parts: Any = (batch,)
    if depth and not isinstance(batch, (torch.Tensor, np.ndarray, *PLAIN, type)):
        if isinstance(batch, (list, tuple)):
            parts = batch
        elif isinstance(batch, Mapping):
            parts = batch.values()
        elif hasattr(batch, "__dict__"):
            parts = vars(batch).values()
        else:
            slots = [name for kind in type(batch).__mro__ for name in getattr(kind, "__slots__", ())]
            parts = [getattr(batch, name) for name in slots if hasattr(batch, name)] or parts
    for part in parts:
        if part is batch:
            yield part
        else:
            yield from leaves(part, depth - 1)


def samples(batch: Any) -> int | None:
    """Return how many samples a batch holds: the length of its first array; None without one."""
    for leaf in islice(leaves(batch), FIRST_LEAVES):
        if isinstance(leaf, (torch.Tensor, np.ndarray)) and leaf.ndim:
            return len(leaf) if not getattr(leaf, "is_nested", False) else leaf.size(0)
    return None


def held_bytes(batch: Any) -> tuple[int, int]:
    """Return the bytes of a batch on the host and on devices."""
    host = device = 0
    for leaf in leaves(batch):
        if isinstance(leaf, torch.Tensor):
            size = leaf.numel() * leaf.element_size()
            host, device = (host + size, device) if leaf.device.type == "cpu" else (host, device + size)
        else:
            host += leaf.nbytes if isinstance(leaf, np.ndarray) else sys.getsizeof(leaf)
    return host, device


def own_memory(loader: Any, batch: Any) -> bool:
    """Return whether a batch may be held without a copy: torch's DataLoader has pinned a copy of each part.

    Other loaders (DALI, FFCV, ring buffers) and a `collate_fn` may reuse memory. Batches of workers are in
    /dev/shm, each part with an open file: a burst of them could exhaust both. They are cloned.
    """
    if not isinstance(loader, DataLoader) or not loader.pin_memory:
        return False
    return all(
        leaf.is_pinned() if isinstance(leaf, torch.Tensor) else isinstance(leaf, PLAIN)
        for leaf in leaves(batch)
    )


def clone(batch: Any, made: dict[int, Any] | None = None) -> Any:
    """Return a copy of a batch in new memory, of the same types; shared parts stay shared."""
    made = {} if made is None else made
    if isinstance(batch, (*PLAIN, type)):
        return batch
    if id(batch) not in made:
        made[id(batch)] = _cloned(batch, made)
    return made[id(batch)]


def _cloned(batch: Any, made: dict[int, Any]) -> Any:
    if isinstance(batch, torch.Tensor):
        if batch.requires_grad:
            raise TypeError("gradients would not pass through a copy to the loader")
        if batch.device.type == "cpu" and batch.layout == torch.strided and batch.is_pinned():
            # pinned too: a copy from pageable memory takes longer, so that the step would be another one
            return torch.empty_like(batch, pin_memory=True).copy_(batch)
        twin = batch.detach().clone()
        if type(batch) is not torch.Tensor:  # a subclass may have attributes
            vars(twin).update(vars(batch))
        return twin
    if isinstance(batch, np.ndarray):
        return batch.copy()
    if type(batch) in (list, tuple):
        return type(batch)(clone(part, made) for part in batch)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(clone(part, made) for part in batch))
    if isinstance(batch, dict):
        twin = copy.copy(batch)  # keeps the class and the order
        twin.update((name, clone(part, made)) for name, part in batch.items())
        return twin
    if callable(getattr(batch, "clone", None)):  # PyTorch Geometric's, TensorDict's, DGL's
        return batch.clone()
    if hasattr(batch, "__dict__"):
        twin = copy.copy(batch)
        for name, part in vars(batch).items():
            object.__setattr__(twin, name, clone(part, made))  # works for frozen ones too
        return twin
    return copy.deepcopy(batch)


def random_states(device: torch.device) -> dict[str, Any]:
    """Return the states of the generators that training may also use: of Python, NumPy, torch and the GPU."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    states = {
        "Python's": random.getstate(),
        "NumPy's": (kind, keys.tobytes(), *rest),
        "torch's": torch.get_rng_state().numpy().tobytes(),
    }
    if device.type == "cuda":
        states["the GPU's"] = torch.cuda.get_rng_state(device).numpy().tobytes()
    return states
