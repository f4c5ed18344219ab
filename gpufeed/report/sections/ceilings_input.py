"""What is said of an input that alone is no faster than training with it."""

from collections.abc import Mapping

from gpufeed.benchmarks.ceilings.shares import END
from gpufeed.report import wording
from gpufeed.report.sections import ceilings_verdict

ALIKE, BELOW = "not told apart from end to end", "below end to end"


def mark(found: Mapping) -> str:
    """ALIKE or BELOW, by the 95 % intervals of the two rates; empty where the input alone is faster.

    Without an interval a rate has its range. BELOW cannot be of a machine that stays as it is: no training is
    faster than its input.
    """
    (alone_low, alone_high), (low, high) = (reach(found, side) for side in ("input_only", END))
    if alone_low > high:
        return ""
    return BELOW if alone_high < low else ALIKE


def sentence(found: Mapping) -> str:
    """What the mark says, with both rates in images/s; empty without a mark."""
    marked = mark(found)
    if not marked:
        return ""
    alone, both = (rate(found, side) for side in ("input_only", END))
    bound = ceilings_verdict.of(found).kind in (ceilings_verdict.INPUT, ceilings_verdict.START)
    limit = "the limit" if bound else "a limit as well"
    if marked == BELOW:
        return (
            f"The input alone, {alone}, lies below {both} end to end: it is {limit}, and one of the two was "
            "disturbed."
        )
    return f"The input alone is {limit}: its {alone} are not told apart from {both} end to end."


def reach(found: Mapping, side: str) -> tuple[float, float]:
    of = found["images_per_s"][side]
    return (of["min"], of["max"]) if of["ci95_low"] is None else (of["ci95_low"], of["ci95_high"])


def rate(found: Mapping, side: str) -> str:
    ends = " to ".join(map(wording.count, reach(found, side)))
    return f"{wording.count(found['images_per_s'][side]['median'])} images/s ({ends})"
