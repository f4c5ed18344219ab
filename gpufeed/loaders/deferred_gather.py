"""Batches that are not gathered yet: which rows of a store on the device a batch has.

A kernel that reads its pixels from there itself spares the batch one way into memory and out again.
"""

from dataclasses import dataclass

import torch

from gpufeed.loaders.base import Batch


@dataclass(frozen=True)
class Rows:
    """Stands for store[rows] where a training step takes images.

    store: uint8 (M, H, W, 3), the same for all batches of a loader; rows: int64 (N,), of 0..M-1. Both on the
    device.
    """

    store: torch.Tensor
    rows: torch.Tensor

    @property
    def shape(self) -> torch.Size:
        """Of the gathered batch: (N, H, W, 3)."""
        return torch.Size((len(self.rows), *self.store.shape[1:]))

    @property
    def device(self) -> torch.device:
        return self.store.device

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, part: slice) -> "Rows":
        """Of some of the rows."""
        return Rows(self.store, self.rows[part])

    def gathered(self) -> torch.Tensor:
        """uint8 (N, H, W, 3), in memory of its own."""
        return self.store.index_select(0, self.rows)

    def clone(self) -> "Rows":
        """With row numbers in memory of their own; the store is the same."""
        return Rows(self.store, self.rows.clone())

    def copy_(self, other: "Rows", non_blocking: bool = False) -> None:
        """Takes the other's row numbers, in place; the store must be the same."""
        self.rows.copy_(other.rows, non_blocking=non_blocking)


class StoredBatch(Batch):
    """A batch whose images are gathered only when asked for; `source` is what a step may gather by itself."""

    def __init__(self, source: Rows, labels: torch.Tensor, ids: torch.Tensor, load_ms: float):
        self.rows, self.labels, self.ids, self.load_ms, self.transfer = source, labels, ids, load_ms, None

    @property
    def source(self) -> Rows:
        return self.rows

    @property
    def images(self) -> torch.Tensor:
        """uint8 (N, H, W, 3), gathered anew at each call."""
        return self.source.gathered()

    def first(self, n: int) -> "StoredBatch":
        return StoredBatch(self.source[:n], self.labels[:n], self.ids[:n], self.load_ms)

    def clone(self) -> "StoredBatch":
        return StoredBatch(self.source.clone(), self.labels.clone(), self.ids.clone(), 0.0)
