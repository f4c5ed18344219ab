"""The order of an epoch: a permutation, the same on every device, and another one each epoch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpufeed.loaders import base
from gpufeed.loaders.base import epoch_order, permutation

seeds = st.integers(0, 2**64 - 1)


@given(st.integers(0, 300), seeds, st.integers(0, 2**33))
def test_every_number_once(n, seed, epoch):
    found = permutation(n, seed, epoch)
    assert found.dtype == torch.int64
    assert sorted(found.tolist()) == list(range(n))
    assert torch.equal(found, permutation(n, seed, epoch))


def test_what_a_seed_means_stays():
    """In plain Python integers; another order would make other trainings of published seeds."""

    def mix(x):
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
            x = (x ^ (x >> shift)) * factor % 2**32
        return x

    def fold(state, value):
        return mix(state ^ mix((value + 0x9E3779B9) % 2**32))

    def key(number):
        state = 0
        for value in (0x0E70C0DE, 5, 2, 7):
            state = fold(state, value)
        return fold(fold(state, 0), number) * 2**31 + fold(fold(state, 1), number) // 2

    assert permutation(50, 5 + 2 * 2**32, 7).tolist() == sorted(range(50), key=key)


@given(seeds, st.integers(0, 50))
def test_seeds_and_epochs_differ(seed, epoch):
    here = permutation(40, seed, epoch).tolist()
    assert here != permutation(40, seed, epoch + 1).tolist()
    assert here != permutation(40, seed ^ 1, epoch).tolist()
    assert here != permutation(40, seed ^ 2**40, epoch).tolist()


def test_every_place_is_equally_likely():
    """Chi squared of (number, place) over 2,000 epochs: 49 independent cells of 8 x 8, 250 in each."""
    counts = np.zeros((8, 8))
    for epoch in range(2000):
        counts[np.arange(8), permutation(8, 11, epoch).numpy()] += 1
    chi2 = ((counts - 250) ** 2 / 250).sum()
    assert 23 < chi2 < 85  # 0.1 % on either side


def test_neighbours_are_not_kept_together():
    """The steps between neighbours of 0..n-1 lie as far apart as those of a random order: (n + 1) / 3."""
    places = torch.empty(10_000)
    places[permutation(10_000, 0, 0)] = torch.arange(10_000, dtype=torch.float32)
    assert places.diff().abs().mean() == pytest.approx(10_001 / 3, rel=0.03)


def test_keys_that_meet_keep_the_order_of_the_numbers(monkeypatch):
    monkeypatch.setattr(base, "fold", lambda state, value: value & 1)
    assert permutation(6, 0, 0).tolist() == [0, 2, 4, 1, 3, 5]


@given(st.integers(1, 60), st.integers(1, 4), seeds)
def test_ranks_share_one_permutation(n, world_size, seed):
    ids = np.arange(100, 100 + n)
    shares = [epoch_order(ids, seed, 2, True, rank, world_size).tolist() for rank in range(world_size)]
    whole = epoch_order(ids, seed, 2, True, 0, 1).tolist()
    assert shares == [whole[rank::world_size] for rank in range(world_size)]
    assert epoch_order(ids, seed, 2, False, 0, 1).tolist() == ids.tolist()
