"""How fast something grows: the slope of Theil and Sen, which a quarter of the points cannot bend."""

from collections.abc import Sequence

import numpy as np

FEWEST = 3  # points: two have a slope whatever happened
MOST = 400  # points: their pairs are 80,000; of more, as many evenly spaced ones are taken


def slope(x: Sequence[float], y: Sequence[float]) -> float | None:
    """The median slope of all pairs of points, in units of y over units of x; None below FEWEST points.

    Points with the same x make no pair. Source: Sen, J. Am. Stat. Assoc. 63 (1968), 1379.
    """
    points = np.asarray([x, y], dtype=np.float64)  # (2, n)
    if points.shape[1] > MOST:
        points = points[:, np.linspace(0, points.shape[1] - 1, MOST).round().astype(int)]
    n = points.shape[1]
    if n < FEWEST:
        return None
    first, second = np.triu_indices(n, 1)
    run, rise = points[:, second] - points[:, first]
    return float(np.median(rise[run != 0] / run[run != 0])) if (run != 0).any() else None
