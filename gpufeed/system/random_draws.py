"""Random numbers as a function of (seed, epoch, sample id), without state: neither order nor worker matters.

The draws take Python ints and int64 tensors, and give the same numbers for both. All values stay below 2**32,
where an overflowing int64 product keeps its low 32 bits.

Philox4x32-10 in torch makes four random words from a counter and a key. Source: J. Salmon and others,
"Parallel random numbers: as easy as 1, 2, 3" (SC 2011). Constants and known answers in the tests are those of
the Random123 library.
"""

from typing import TypeVar

import torch

Number = TypeVar("Number", int, torch.Tensor)

BITS = 32
MASK = 2**BITS - 1
GOLDEN = 0x9E3779B9  # 2**32 / golden ratio: keeps the fixed point mix(0) = 0 away from small numbers
PHILOX_ROUNDS = 10
PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
PHILOX_WEYL = (0x9E3779B9, 0xBB67AE85)  # added to the two words of the key in each round


def mix(x: Number) -> Number:
    """Map 0..2**32-1 one to one, so that every input bit flips every output bit about half the time.

    Source: C. Wellons, "Prospecting for hash functions" (2018), the constants of lowbias32.
    """
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & MASK
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & MASK
    return x ^ (x >> 16)


def fold(state: Number, value: Number) -> Number:
    """Return a new state from a state and the next value."""
    return mix(state ^ mix((value + GOLDEN) & MASK))


def sample_state(seed: int, epoch: Number, ids: Number) -> Number:
    """Return the state of each sample, with the shape of `ids`. A seed may have 64 bits."""
    state = fold(fold(0, seed & MASK), (seed >> BITS) & MASK)
    return fold(fold(state, epoch), ids)


def draw(state: Number, which: Number) -> Number:
    """Return the `which`-th random number of a sample, uniform in 0..2**32-1."""
    return fold(state, which)


def below(number: Number, limit: int) -> Number:
    """Map a uniform draw to 0..limit-1 (limit < 2**31)."""
    return (number * limit) >> BITS


def chance(number: Number, probability: float) -> Number:
    """Map a uniform draw to True with the given probability."""
    return number < round(probability * 2**BITS)


def uniform(number: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Map a uniform draw to a float32 between low and high."""
    return number.to(torch.float32).mul_(2.0**-BITS * (high - low)).add_(low)


# The draws of a sample. Changing a number would change what a seed means: add new ones at the end.
TOP, LEFT, FLIP, BRIGHTNESS, CONTRAST, ANGLE, WINDOW = range(7)  # WINDOW: the first of 40


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
    """Return the high and the low 32 bits of a product of 32-bit numbers, in int64 without an unsigned type.

    The low bits survive the overflow of the product; the high ones come from two partial products of 48 bits.
    """
    low = (word * factor) & MASK
    high = ((word >> 16) * factor + (((word & 0xFFFF) * factor) >> 16)) >> 16
    return high, low
