"""AU, and where the rest of an epoch goes, from pairs of segments. Pure functions on plain data."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpufeed.system import statistics

END, ALONE = "end_to_end", "compute_only"
# Shares of the end-to-end time: by how much a part is longer with the loader than without.
PARTS = {"wait": "wait_s", "growth": "step_s", "start": "start_s"}


def summary(values: Iterable[float]) -> dict[str, float | None]:
    """Return n, median, min, max and the 95 % interval of the median, which is None below six values."""
    found = statistics.summarise(values)
    return {name: None if math.isnan(value) else value for name, value in found.items()}


def shares(pairs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return summaries over the pairs, with 95 % intervals from six pairs on.

    au: compute-only over end-to-end time. The others are shares of the end-to-end time; in each pair wait +
    growth = 1 - au. wait: the gaps between steps, minus those without a loader. growth: how much longer the
    steps themselves take with the loader. start: the part of wait by which the first batch of each epoch
    takes longer than the others.
    """
    found = {"au": summary(pair[ALONE]["seconds"] / pair[END]["seconds"] for pair in pairs)}
    for name, part in PARTS.items():
        found[name] = summary((pair[END][part] - pair[ALONE][part]) / pair[END]["seconds"] for pair in pairs)
    return found


def rates(pairs: Sequence[Mapping[str, Any]], images: int) -> dict[str, dict[str, float]]:
    """Return images/s of each side, over the pairs; images: of a segment."""
    return {side: summary(images / pair[side]["seconds"] for pair in pairs) for side in (END, ALONE)}


def epoch_parts(pairs: Sequence[Mapping[str, Any]], epochs: int) -> dict[str, float]:
    """Return the seconds of an end-to-end epoch over all pairs: compute, wait, start (not in wait), growth.

    They add up to the epoch. A part that noise makes negative counts as compute.
    """
    over = epochs * len(pairs)
    alone = _mean(pairs, ALONE, "seconds", over)
    extra = {
        name: _mean(pairs, END, part, over) - _mean(pairs, ALONE, part, over) for name, part in PARTS.items()
    }
    whole = alone + extra["wait"] + extra["growth"]
    extra["start"] = min(max(0.0, extra["start"]), max(0.0, extra["wait"]))
    extra["wait"] -= extra["start"]
    parts = {name: max(0.0, seconds) for name, seconds in extra.items()}
    return {"compute": whole - sum(parts.values()), **parts}


def _mean(pairs: Iterable[Mapping[str, Any]], side: str, part: str, over: int) -> float:
    return sum(pair[side][part] for pair in pairs) / over
