"""The order of an epoch, as a function of (seed, epoch) alone, the same on every device."""

import numpy as np
import torch

from gpufeed.system.random_draws import BITS, MASK, fold

ORDER_TAG = 0x0E70C0DE  # keeps the draws of an order apart from those of augments


def permutation(n: int, seed: int, epoch: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """A random order of 0..n-1, int64 (n,), made on the device without waiting for it.

    Every number draws a key of 63 bits from (seed, epoch, itself), and they are sorted by their keys; the
    sort is stable, so that keys which meet give the same order everywhere. A seed may have 64 bits.
    """
    state = fold(fold(fold(fold(0, ORDER_TAG), seed & MASK), (seed >> BITS) & MASK), epoch & MASK)
    numbers = torch.arange(n, device=device)
    high, low = (fold(fold(state, half), numbers) for half in range(2))
    return torch.sort((high << (BITS - 1)) | (low >> 1), stable=True).indices


def epoch_order(
    ids: np.ndarray, seed: int, epoch: int, shuffle: bool, rank: int, world_size: int
) -> np.ndarray:
    """The sample ids of one rank in the order of one epoch, int64: a function of (seed, epoch) alone.

    Ranks take every world_size-th id of one common permutation, so that their shares are disjoint,
    whole and at most one sample apart.
    """
    if shuffle:
        ids = ids[permutation(len(ids), seed, epoch).numpy()]
    return ids[rank::world_size]
