"""Statistics of repeats: median and range, an interval from six repeats on, and when one side is faster.

All intervals are of one kind: sorted values with both ends cut off as far as chance allows. They assume no
distribution, and cover 95 % or more for any number of repeats (docs/reference/statistics.md). Growth is the
slope of Theil and Sen, which is robust against a quarter of outliers.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

# The median lies outside the range of five values in 6.25 % of all cases, of six values in 3.1 %.
ENOUGH_FOR_INTERVAL = 6
OUTSIDE = 0.05  # probability outside of an interval
NORMAL = 1.96  # standard deviations for 1 - OUTSIDE
# A ratio closer to 1 than this does not matter in practice, however certain it is.
MATTERS = 1.03
# By how much a rate may exceed its upper bound. Memory layout and blocks kept by malloc make a few percent.
# Single repeats scatter more, but not beyond FAR on a quiet machine.
FEW_PERCENT, FAR = 0.05, 0.25
# If the upper end of a ratio is more than this times the lower one, it does not show equal rates.
WIDE = 1.5
# Two samples of different size whose standard deviations differ by more than this factor have no interval
# together: that of the rank sum test would miss the truth too often (docs/reference/statistics.md).
UNEQUAL = 2.0
BUSY = "machine too busy"
FASTER, SLOWER, SAME, FEW = "faster", "slower", "no difference shown", "too few repeats"
UNLIKE = "number and spread of repeats differ"  # both have enough, but no interval (UNEQUAL)
FEWEST_POINTS = 3  # of a slope: two points always have one
MOST_POINTS = 400  # with 80,000 pairs; of more points, evenly spaced ones are used
NOTHING = (math.nan, (math.nan, math.nan), None)


def summarise(values: Iterable[float]) -> dict[str, float]:
    """Return n, median, min, max and the 95 % interval of the median, ci95_low and ci95_high.

    Missing values do not count. Without values all but n is NaN; below six values the interval is.
    """
    sample = np.asarray([value for value in values if value is not None], dtype=float)
    sample = np.sort(sample[~np.isnan(sample)])
    low, high = interval_of_median(sample) or (math.nan, math.nan)
    median, least, most = (
        (float(np.median(sample)), float(sample[0]), float(sample[-1])) if sample.size else (math.nan,) * 3
    )
    return {
        "n": int(sample.size),
        "median": median,
        "min": least,
        "max": most,
        "ci95_low": low,
        "ci95_high": high,
    }


def interval_of_median(ordered: np.ndarray) -> tuple[float, float] | None:
    """Return the 95 % interval of the median of sorted values; None below six.

    Each value lies above the true median with probability one half, so the number that do is binomial for any
    distribution. The interval of six to eight values is their range, that of more a part of it. Source:
    Conover, Practical Nonparametric Statistics, 3.2 (the interval of the sign test).
    """
    n, beyond, cut = ordered.size, 1, 0
    if n < ENOUGH_FOR_INTERVAL:
        return None
    while 2 * beyond / 2**n <= OUTSIDE:
        cut += 1
        beyond += math.comb(n, cut)
    return _cut_off(ordered, cut)


def _cut_off(ordered: np.ndarray, cut: int) -> tuple[float, float]:
    """Return the cut-th value from either end, counted from 1."""
    return float(ordered[cut - 1]), float(ordered[-cut])


def overlap(low: float, high: float, other_low: float, other_high: float) -> bool:
    """Return whether two closed ranges have a point in common."""
    return low <= other_high and other_low <= high


@dataclass(frozen=True)
class Ratio:
    """The ratio of two rates from their repeats, as logarithms, so that 1 / ratio mirrors it exactly.

    n: pairs, or repeats of the side that has fewer; without any, median and range are NaN. log_range: the
    smallest and the largest ratio that the repeats allow. log_interval: the 95 % interval, None below six and
    for unequal sides; of the median ratio if paired, else of the ratio between the sides.
    """

    n: int
    log_median: float
    log_range: tuple[float, float]
    log_interval: tuple[float, float] | None
    paired: bool

    @property
    def median(self) -> float:
        return math.exp(self.log_median)

    @property
    def range(self) -> tuple[float, float]:
        return math.exp(self.log_range[0]), math.exp(self.log_range[1])

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval; None below six repeats, and for sides that differ in size and spread."""
        return self.log_interval and (math.exp(self.log_interval[0]), math.exp(self.log_interval[1]))

    @property
    def apart(self) -> bool:
        """Whether all repeats of one side are more than MATTERS above those of the other.

        False for a single repeat. Below six repeats this is weak evidence. Two equal sides with two repeats
        each have separate ranges in a third of all cases, mostly with a smaller gap.
        """
        low, high = self.log_range
        return self.n > 1 and (low > math.log(MATTERS) or high < -math.log(MATTERS))


def difference(ratio: Ratio) -> str:
    """Return FASTER or SLOWER if the 95 % interval lies beyond MATTERS, else SAME; FEW or UNLIKE if none."""
    if ratio.log_interval is None:
        return FEW if ratio.n < ENOUGH_FOR_INTERVAL else UNLIKE
    low, high = ratio.log_interval
    if low > math.log(MATTERS):
        return FASTER
    return SLOWER if high < -math.log(MATTERS) else SAME


def paired_ratio(pairs: Iterable[tuple[float | None, float | None]]) -> Ratio:
    """Return the ratio of paired rates, first over second, for repeats of one run.

    The median is that of the ratios (for an even number, the geometric mean of the middle two). Pairs with a
    missing value do not count. Raises ValueError for a rate that is not above 0.
    """
    both = [pair for pair in pairs if not any(value is None or math.isnan(value) for value in pair)]
    if not both:
        return Ratio(0, *NOTHING, paired=True)
    logs = np.sort(np.log(_rates(rate for rate, _ in both)) - np.log(_rates(other for _, other in both)))
    ranged = (float(logs[0]), float(logs[-1]))
    return Ratio(logs.size, float(np.median(logs)), ranged, interval_of_median(logs), paired=True)


def _rates(values: Iterable[float]) -> np.ndarray:
    rates = np.asarray(list(values), dtype=float)
    if not (np.isfinite(rates) & (rates > 0)).all():
        raise ValueError(f"rates are above 0 and finite, found {rates.tolist()}")
    return rates


def unpaired_ratio(rates: Iterable[float | None], others: Iterable[float | None]) -> Ratio:
    """Return the ratio of the medians of two samples, first over second, for two independent runs.

    The range goes from the slowest over the fastest to the fastest over the slowest. Missing values do not
    count. Raises ValueError for a rate that is not above 0.
    """
    first, second = (
        np.sort(_rates(rate for rate in side if rate is not None and not math.isnan(rate)))
        for side in (rates, others)
    )
    n = min(first.size, second.size)
    if not n:
        return Ratio(0, *NOTHING, paired=False)
    median = np.log(np.median(first)) - np.log(np.median(second))
    ranged = (np.log(first[0]) - np.log(second[-1]), np.log(first[-1]) - np.log(second[0]))
    interval = _interval_of_two(np.log(first), np.log(second), float(median))
    return Ratio(n, float(median), (float(ranged[0]), float(ranged[1])), interval, paired=False)


def _interval_of_two(first: np.ndarray, second: np.ndarray, middle: float) -> tuple[float, float] | None:
    """Return the 95 % interval of the shift from second to first.

    None if one has fewer than six values, and where both size and spread differ (UNEQUAL).

    All pairwise differences are sorted, and both ends are cut off as far as rank sums allow. The cut is the
    rounded normal approximation, which covers 95 % or more by exact counts for up to 20 values a side
    (tested). Both sides are assumed to scatter about alike. Otherwise, as with two clusters of values, the
    interval is widened to contain `middle`, the difference of the medians. Source: Hollander and Wolfe,
    Nonparametric Statistical Methods, 4.3 (the interval of the rank sum test).
    """
    n, m = first.size, second.size
    if min(n, m) < ENOUGH_FOR_INTERVAL:
        return None
    narrow, wide = sorted((np.std(first, ddof=1), np.std(second, ddof=1)))
    if n != m and wide > UNEQUAL * narrow:
        return None
    cut = round(n * m / 2 - NORMAL * math.sqrt(n * m * (n + m + 1) / 12))
    low, high = _cut_off(np.sort((first[:, None] - second).ravel()), cut)
    return min(low, middle), max(high, middle)


def slope(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Return the median slope of all pairs of points, in y over x; None below FEWEST_POINTS.

    Points with the same x make no pair. Source: Sen, J. Am. Stat. Assoc. 63 (1968), 1379.
    """
    points = np.asarray([x, y], dtype=np.float64)  # (2, n)
    if points.shape[1] > MOST_POINTS:
        points = points[:, np.linspace(0, points.shape[1] - 1, MOST_POINTS).round().astype(int)]
    n = points.shape[1]
    if n < FEWEST_POINTS:
        return None
    first, second = np.triu_indices(n, 1)
    run, rise = points[:, second] - points[:, first]
    return float(np.median(rise[run != 0] / run[run != 0])) if (run != 0).any() else None
