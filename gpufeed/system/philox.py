"""Philox4x32-10 in torch: four random words out of a counter and a key, without any state.

Source: J. Salmon and others, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011); the constants are
those of the Random123 library, whose known answers are in the tests.
"""

import torch

MASK = 2**32 - 1
ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # what the two words of the key grow by in each round

Words = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """counter: four int64 tensors of one shape, or shapes that broadcast, with values in 0..2**32-1.

    Returns four int64 tensors of the same range.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = multiply(c0, MULTIPLIERS[0])
        high1, low1 = multiply(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + WEYL[0]) & MASK, (k1 + WEYL[1]) & MASK
    return c0, c1, c2, c3


def multiply(word: torch.Tensor, factor: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The high and the low 32 bits of a product of 32-bit numbers, in int64 that has no unsigned form.

    The low bits survive the wrap-around of the whole product; the high ones come of two halves of 48 bits.
    """
    low = (word * factor) & MASK
    high = ((word >> 16) * factor + (((word & 0xFFFF) * factor) >> 16)) >> 16
    return high, low
