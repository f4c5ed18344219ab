"""What repeats say together: median and range, from six repeats on an interval; and what counts as faster.

All intervals are of one kind: sorted values, of which both ends are cut off as far as chance allows. They ask
for no shape of the distribution, and cover 95 % or more however few the repeats are
(docs/reference/statistics.md).
How fast something grows is the slope of Theil and Sen, which a quarter of the points cannot bend.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

# The median lies beyond all of five values in 6.25 % of all cases, beyond all of six in 3.1 %.
ENOUGH_FOR_INTERVAL = 6
OUTSIDE = 0.05  # what the ends of an interval may leave out together
NORMAL = 1.96  # standard deviations that hold 1 - OUTSIDE
# A ratio closer to 1 than this is nobody's reason to change anything, however sure it is.
MATTERS = 1.03
# By how much a rate may pass its upper bound: memory layout, and a freed block that is not given back, are
# worth a few percent; single repeats scatter by more, but on a quiet machine never so far.
FEW_PERCENT, FAR = 0.05, 0.25
# A ratio whose upper end is more than so many times the lower one does not say that two rates are alike.
WIDE = 1.5
BUSY = "machine too busy"
FASTER, SLOWER, SAME, FEW = "faster", "slower", "no difference shown", "too few repeats"
FEWEST_POINTS = 3  # points: two have a slope whatever happened
MOST_POINTS = 400  # points: their pairs are 80,000; of more, as many evenly spaced ones are taken


def summarise(values: Iterable[float]) -> dict[str, float]:
    """n, median, min, max and the 95 % interval of the median, ci95_low and ci95_high.

    Missing values do not count. Without values everything but n is NaN; below six values so is the interval.
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
    """The 95 % interval of the median of sorted values; None below six.

    Each value lies above the median of all that could have been measured in half of all cases: how many do
    is binomial, whatever the distribution. Six to eight values give their range, more a part of it.
    Source: Conover, Practical Nonparametric Statistics, 3.2 (the interval of the sign test).
    """
    n, beyond, cut = ordered.size, 1, 0
    if n < ENOUGH_FOR_INTERVAL:
        return None
    while 2 * beyond / 2**n <= OUTSIDE:
        cut += 1
        beyond += math.comb(n, cut)
    return _cut_off(ordered, cut)


def _cut_off(ordered: np.ndarray, cut: int) -> tuple[float, float]:
    """The cut-th value from either end, counted from 1."""
    return float(ordered[cut - 1]), float(ordered[-cut])


def overlap(low: float, high: float, other_low: float, other_high: float) -> bool:
    """Whether two closed ranges have a point in common."""
    return low <= other_high and other_low <= high


@dataclass(frozen=True)
class Ratio:
    """A rate over another, from their repeats; kept as logarithms, so that 1 / ratio mirrors it exactly.

    n: pairs, or repeats of the side that has fewer; without any, median and range are NaN. log_range: the
    smallest and the largest ratio that the repeats allow. log_interval: 95 % interval of the median ratio
    (paired) or of the ratio of one side to the other; None below six.
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
        """The 95 % interval; None below six repeats."""
        return self.log_interval and (math.exp(self.log_interval[0]), math.exp(self.log_interval[1]))

    @property
    def apart(self) -> bool:
        """Whether the repeats of one side are all beyond MATTERS above those of the other.

        Never by one repeat alone. Below six repeats that is all there is to go by, and little: the ranges of
        two equal sides of two keep apart, by less, in a third of all cases.
        """
        low, high = self.log_range
        return self.n > 1 and (low > math.log(MATTERS) or high < -math.log(MATTERS))


def difference(ratio: Ratio) -> str:
    """FASTER or SLOWER if the whole 95 % interval lies beyond MATTERS, else SAME; FEW below six repeats."""
    if ratio.log_interval is None:
        return FEW
    low, high = ratio.log_interval
    if low > math.log(MATTERS):
        return FASTER
    return SLOWER if high < -math.log(MATTERS) else SAME


def paired_ratio(pairs: Iterable[tuple[float | None, float | None]]) -> Ratio:
    """The ratio of rates that belong together, first over second; for repeats of one run (see `blocks`).

    The median is that of the ratios of the pairs (of an even number the geometric mean of the middle two).
    A pair with a missing value does not count, and the order of the pairs changes nothing. Raises ValueError
    for a rate that is not above 0.
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
    """The ratio of the medians of two samples, first over second.

    For two runs, whose repeats have nothing in common. The range reaches from the slowest over the fastest to
    the fastest over the slowest. Missing values do not count. Raises ValueError for a rate that is not above
    0.
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


NOTHING = (math.nan, (math.nan, math.nan), None)


def _interval_of_two(first: np.ndarray, second: np.ndarray, middle: float) -> tuple[float, float] | None:
    """The 95 % interval of the shift from second to first; None where one has fewer than six values.

    Of the sorted differences of each value to each of the other side, as many are cut off at either end as
    rank sums allow (by the normal approximation, rounded: 95 % or more by exact counts, tested for up to 20
    values a side). It assumes that both sides scatter alike, and is widened to hold `middle`, the difference
    of the medians, where it does not: two clusters of values can do that.
    Source: Hollander and Wolfe, Nonparametric Statistical Methods, 4.3 (the interval of the rank sum test).
    """
    n, m = first.size, second.size
    if min(n, m) < ENOUGH_FOR_INTERVAL:
        return None
    cut = round(n * m / 2 - NORMAL * math.sqrt(n * m * (n + m + 1) / 12))
    low, high = _cut_off(np.sort((first[:, None] - second).ravel()), cut)
    return min(low, middle), max(high, middle)


def slope(x: Sequence[float], y: Sequence[float]) -> float | None:
    """The median slope of all pairs of points, in units of y over units of x; None below FEWEST points.

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
