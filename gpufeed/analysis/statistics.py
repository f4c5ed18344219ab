"""What the repeats of a cell say together: median and range, from six repeats on an interval too."""

from collections.abc import Iterable

import numpy as np

# Below six values a bootstrap of the median can only return the values themselves.
ENOUGH_FOR_INTERVAL = 6
RESAMPLES = 2000


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
        summary["ci95_low"], summary["ci95_high"] = _interval(sample, seed)
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
