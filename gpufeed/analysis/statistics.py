"""What repeats say together: median and range, from six repeats on an interval; and what counts as faster."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

# Below six values a bootstrap of the median can only return the values themselves.
ENOUGH_FOR_INTERVAL = 6
RESAMPLES = 2000
# A ratio closer to 1 than this is nobody's reason to change anything, however sure it is.
MATTERS = 1.03
FASTER, SLOWER, SAME, FEW = "faster", "slower", "no difference shown", "too few repeats"


def summarise(values: Iterable[float], seed: int = 0) -> dict[str, float]:
    """n, median, min, max and the bootstrap 95 % interval of the median (percentile method, seeded).

    Missing values do not count. Without values everything but n is NaN; below six values so is the interval.
    """
    sample = np.asarray([value for value in values if value is not None], dtype=float)
    sample = sample[~np.isnan(sample)]
    nothing = float("nan")
    summary = {"n": int(sample.size)} | dict.fromkeys(
        ("median", "min", "max", "ci95_low", "ci95_high"), nothing
    )
    if not sample.size:
        return summary
    summary |= {"median": float(np.median(sample)), "min": float(sample.min()), "max": float(sample.max())}
    if sample.size >= ENOUGH_FOR_INTERVAL:
        # a percentile between two equal values may come out a rounding beyond them
        low, high = np.clip(_interval(sample, seed), sample.min(), sample.max())
        summary |= {"ci95_low": float(low), "ci95_high": float(high)}
    return summary


def _interval(sample: np.ndarray, seed: int) -> tuple[float, float]:
    from scipy import stats  # takes a second or two, which most reports need not wait for

    result = stats.bootstrap(
        (sample,),
        np.median,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def overlap(low: float, high: float, other_low: float, other_high: float) -> bool:
    """Whether two closed ranges have a point in common."""
    return low <= other_high and other_low <= high


@dataclass(frozen=True)
class Ratio:
    """A rate over another, from their repeats; kept as logarithms, so that 1 / ratio mirrors it exactly.

    n: pairs, or repeats of the side that has fewer; without any, median and range are NaN. log_range: the
    smallest and the largest ratio that the repeats allow. log_interval: bootstrap 95 % interval of the median
    ratio (paired) or of the ratio of medians; None below six.
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


def paired_ratio(pairs: Iterable[tuple[float | None, float | None]], seed: int = 0) -> Ratio:
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
    return Ratio(logs.size, float(np.median(logs)), ranged, _interval_of_pairs(logs, seed), paired=True)


def _rates(values: Iterable[float]) -> np.ndarray:
    rates = np.asarray(list(values), dtype=float)
    if not (np.isfinite(rates) & (rates > 0)).all():
        raise ValueError(f"rates are above 0 and finite, found {rates.tolist()}")
    return rates


def _interval_of_pairs(logs: np.ndarray, seed: int) -> tuple[float, float] | None:
    """Each draw of sorted values is taken with its mirror image: swapping the sides inverts exactly."""
    if logs.size < ENOUGH_FOR_INTERVAL:
        return None
    drawn = _draws(logs.size, seed)
    both = np.concatenate([logs[drawn], logs[logs.size - 1 - drawn]])
    return _middle(np.median(both, axis=1))


def unpaired_ratio(rates: Iterable[float | None], others: Iterable[float | None], seed: int = 0) -> Ratio:
    """The ratio of the medians of two samples, first over second, each resampled by itself.

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
    median = _log_median(first) - _log_median(second)
    ranged = (np.log(first[0]) - np.log(second[-1]), np.log(first[-1]) - np.log(second[0]))
    interval = _interval_of_two(first, second, seed)
    return Ratio(n, float(median), (float(ranged[0]), float(ranged[1])), interval, paired=False)


NOTHING = (math.nan, (math.nan, math.nan), None)


def _log_median(rates: np.ndarray) -> np.ndarray:
    return np.log(np.median(rates, axis=-1))


def _interval_of_two(first: np.ndarray, second: np.ndarray, seed: int) -> tuple[float, float] | None:
    """Half of the draws take the two streams the other way around: swapping the sides inverts exactly."""
    if min(first.size, second.size) < ENOUGH_FOR_INTERVAL:
        return None

    def medians(rates: np.ndarray, stream: int) -> np.ndarray:
        return _log_median(rates[_draws(rates.size, seed, stream)])

    ratios = [medians(first, 0) - medians(second, 1), medians(first, 1) - medians(second, 0)]
    return _middle(np.concatenate(ratios))


def _draws(size: int, seed: int, stream: int = 0) -> np.ndarray:
    """Half of RESAMPLES draws with replacement: indices (RESAMPLES // 2, size)."""
    return np.random.default_rng([seed, stream]).integers(size, size=(RESAMPLES // 2, size))


def _middle(values: np.ndarray) -> tuple[float, float]:
    """The middle 95 % of the values, cut off alike at both ends."""
    values, cut = np.sort(values), round(0.025 * values.size)
    return float(values[cut]), float(values[-1 - cut])
