"""How often 95 % intervals hold the true value, by simulation: python tests/bench/coverage.py

Rates of two distributions that scatter by 1 %: one symmetric, one with a long slow tail. Prints a row for
each number of repeats and each distribution: the share of SAMPLES whose interval
(gpufeed.system.statistics) holds the truth, of the median of one side and of the ratio of two equal sides;
beside them the percentile bootstrap of the median, RESAMPLES draws each. Then sides of different size and
spread: the share of SAMPLES whose interval misses the truth, with and without UNEQUAL. Half a minute.
The result is in docs/reference/statistics.md.
"""

import math
from collections.abc import Callable

import numpy as np

from gpufeed.system import statistics
from gpufeed.system.statistics import interval_of_median, unpaired_ratio

SEED, SAMPLES, RESAMPLES = 0, 4000, 2000
REPEATS = (6, 7, 8, 9, 10, 12, 20)
RATES: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "normal": lambda random, shape: np.exp(0.01 * random.standard_normal(shape)),
    "slow tail": lambda random, shape: 1.01 / (1 + 0.01 * random.lognormal(size=shape)),
}
TRUTH = 1.0  # the median of either


def bootstrap(sample: np.ndarray, random: np.random.Generator) -> tuple[float, float]:
    """The percentile interval of the median of one sample (n,)."""
    drawn = sample[random.integers(sample.size, size=(RESAMPLES, sample.size))]
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return float(low), float(high)


def covered(intervals: list[tuple[float, float] | None]) -> float:
    """The share that holds the truth."""
    return sum(low <= TRUTH <= high for low, high in intervals) / len(intervals)


def missed(first: np.ndarray, second: np.ndarray) -> float:
    """The percentage of samples (SAMPLES, n) whose ratio has an interval without the truth."""
    found = [unpaired_ratio(a, b).interval for a, b in zip(first, second, strict=True)]
    return 100 * sum(one is not None and not one[0] <= TRUTH <= one[1] for one in found) / SAMPLES


def main() -> None:
    random = np.random.default_rng(SEED)
    print("| n | rates | median | ratio of two sides | bootstrap of the median |\n|---|---|---|---|---|")
    for n in REPEATS:
        for name, draw in RATES.items():
            samples, others = draw(random, (SAMPLES, n)), draw(random, (SAMPLES, n))
            shares = (
                covered([interval_of_median(np.sort(sample)) for sample in samples]),
                covered([unpaired_ratio(a, b).interval for a, b in zip(samples, others, strict=True)]),
                covered([bootstrap(sample, random) for sample in samples]),
            )
            print(f"| {n} | {name} | {' | '.join(f'{share * 100:.1f} %' for share in shares)} |", flush=True)
    print("\n| n | of the other | spread / that of the other | missed | without the rule |")
    print("|---|---|---|---|---|")
    rule, draw = statistics.UNEQUAL, RATES["normal"]
    for n, m in ((6, 9), (6, 20)):
        for factor in (1, 2, 3, 5):
            first, second = draw(random, (SAMPLES, n)) ** factor, draw(random, (SAMPLES, m))
            with_rule = missed(first, second)
            statistics.UNEQUAL = math.inf
            print(f"| {n} | {m} | {factor} | {with_rule:.1f} % | {missed(first, second):.1f} % |", flush=True)
            statistics.UNEQUAL = rule


if __name__ == "__main__":
    main()
