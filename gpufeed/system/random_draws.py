"""Random numbers as a function of (seed, epoch, sample id): no state, so no order and no worker matters.

The draws of a sample take Python ints and int64 tensors alike and give the same numbers for both: all
values stay below 2**32, where the wrap-around of an int64 product leaves the low 32 bits as they are.

Philox4x32-10 in torch makes four random words out of a counter and a key. Source: J. Salmon and others,
"Parallel random numbers: as easy as 1, 2, 3" (SC 2011); the constants are those of the Random123 library,
whose known answers are in the tests.
"""

from typing import TypeVar

import torch

Number = TypeVar("Number", int, torch.Tensor)

BITS = 32
MASK = 2**BITS - 1
GOLDEN = 0x9E3779B9  # 2**32 / golden ratio: keeps the fixed point mix(0) = 0 away from small numbers


def mix(x: Number) -> Number:
    """A bijection of 0..2**32-1 in which every input bit flips every output bit about half the time.

    Source: C. Wellons, "Prospecting for hash functions" (2018), the constants of lowbias32.
    """
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & MASK
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & MASK
    return x ^ (x >> 16)


def fold(state: Number, value: Number) -> Number:
    """A new state out of a state and the next value."""
    return mix(state ^ mix((value + GOLDEN) & MASK))


def sample_state(seed: int, epoch: Number, ids: Number) -> Number:
    """The state of each sample, of the shape of `ids`. A seed may have 64 bits."""
    state = fold(fold(0, seed & MASK), (seed >> BITS) & MASK)
    return fold(fold(state, epoch), ids)


def draw(state: Number, which: Number) -> Number:
    """The `which`-th random number of a sample, uniform in 0..2**32-1."""
    return fold(state, which)


def below(number: Number, limit: int) -> Number:
    """A uniform draw turned into one of 0..limit-1 (limit < 2**31)."""
    return (number * limit) >> BITS


def chance(number: Number, probability: float) -> Number:
    """A uniform draw turned into True with the given probability."""
    return number < round(probability * 2**BITS)


def uniform(number: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """A uniform draw turned into a float32 between low and high."""
    return number.to(torch.float32).mul_(2.0**-BITS * (high - low)).add_(low)


# Which draw of a sample decides what. The numbers are part of what a seed means: new ones come at the end.
TOP, LEFT, FLIP, BRIGHTNESS, CONTRAST, ANGLE, WINDOW = range(7)  # WINDOW: the first of 40


PHILOX_ROUNDS = 10
PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
PHILOX_WEYL = (0x9E3779B9, 0xBB67AE85)  # what the two words of the key grow by in each round

PhiloxWords = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def philox(counter: PhiloxWords, key: tuple[int, int]) -> PhiloxWords:
    """Return the four random words of a counter and a key, by Philox4x32-10, as int64 tensors.

    counter: four int64 tensors of one shape, or shapes that broadcast. All values are in 0..2**32-1.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(PHILOX_ROUNDS):
        high0, low0 = multiply_words(c0, PHILOX_MULTIPLIERS[0])
        high1, low1 = multiply_words(c2, PHILOX_MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + PHILOX_WEYL[0]) & MASK, (k1 + PHILOX_WEYL[1]) & MASK
    return c0, c1, c2, c3


def multiply_words(word: torch.Tensor, factor: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The high and the low 32 bits of a product of 32-bit numbers, in int64 that has no unsigned form.

    The low bits survive the wrap-around of the whole product; the high ones come of two halves of 48 bits.
    """
    low = (word * factor) & MASK
    high = ((word >> 16) * factor + (((word & 0xFFFF) * factor) >> 16)) >> 16
    return high, low
