"""Which images of an epoch are decoded together, where they are of several kinds and a call takes one."""

from dataclasses import dataclass

import numpy as np
import torch

from gpufeed.loaders.batch_transfer import send
from gpufeed.loaders.coded_store import CodedStore

NOWHERE = (0, -1)  # start and end of no image


@dataclass(frozen=True)
class Plan:
    """What the host knows of an epoch: n samples in rounds of `size`, the last one smaller.

    order, rows, kinds: sample ids, rows of the store and their kinds, int64 (n,). usual: the kind of most
    images, of which each round is one call, with the others left out. others: where in `order` those stand,
    int64 (m,), by round and then by kind; counts: how many they are, int64 (rounds, kinds).
    """

    size: int
    order: np.ndarray
    rows: np.ndarray
    kinds: np.ndarray
    usual: int
    others: np.ndarray
    counts: np.ndarray


def plan_of(order: np.ndarray, rows: np.ndarray, store: CodedStore, size: int) -> Plan:
    """The plan of samples in that order, int64 (n,), which are those rows of the store."""
    kinds, every, rounds = store.kinds[rows], store.pixels + 1, -(-len(order) // size)
    usual = int(np.bincount(store.kinds).argmax())
    others = np.flatnonzero(kinds != usual)
    parts = others // size * every + kinds[others]
    counts = np.bincount(parts, minlength=rounds * every).reshape(rounds, every)
    return Plan(size, order, rows, kinds, usual, others[np.argsort(parts, kind="stable")], counts)


class Epoch:
    """A plan on the device, and the decoding of its rounds, queued on the current stream without waits.

    labels, ids: int64 (n,), in the order of the epoch.
    """

    def __init__(self, plan: Plan, labels: np.ndarray, store: CodedStore):
        """labels: by sample id, int64."""
        self.plan, self.store, device = plan, store, store.data.device
        self.ids, self.labels = send(plan.order, device), send(labels[plan.order], device)
        rows, others = send(plan.rows, device), send(plan.others, device)
        self.starts, self.ends = store.starts[rows], store.ends[rows]
        self.places, self.others = others % plan.size, (self.starts[others], self.ends[others])
        for bounds, nowhere in zip((self.starts, self.ends), NOWHERE, strict=True):
            bounds.index_fill_(0, others, nowhere)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self.ids, self.labels, self.starts, self.ends, self.places, *self.others

    def round(self, number: int) -> torch.Tensor:
        """Its images, uint8 (n, H, W, 3), new."""
        plan, store = self.plan, self.store
        here = slice(number * plan.size, (number + 1) * plan.size)
        images = store.images(plan.usual, self.starts[here], self.ends[here])
        begin = int(plan.counts[:number].sum())
        for kind, count in enumerate(plan.counts[number].tolist()):
            if count:
                part = slice(begin, begin := begin + count)
                found = store.images(kind, *(bounds[part] for bounds in self.others))
                images.index_copy_(0, self.places[part], found)
        return images
