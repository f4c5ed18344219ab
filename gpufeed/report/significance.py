"""How one cell stands to another: what every comparison of two pipelines in a report goes by."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pandas as pd

from gpufeed.report import paired_repeats, wording
from gpufeed.system.statistics import (
    ENOUGH_FOR_INTERVAL,
    FASTER,
    SAME,
    SLOWER,
    Ratio,
    difference,
    unpaired_ratio,
)

# Below six repeats, and on several cards, there are ranges alone: they keep apart, and no more is claimed.
ABOVE, BELOW = "range above", "range below"


@dataclass(frozen=True)
class Standing:
    """`how`: FASTER, SLOWER or SAME by the 95 % interval; ABOVE, BELOW or SAME where there is none.

    other_cards: which GPUs of one model they do not share, in words; "" for the same.
    """

    how: str
    ratio: Ratio
    other_cards: str = ""

    @property
    def ahead(self) -> bool:
        return self.how in (FASTER, ABOVE)

    @property
    def behind(self) -> bool:
        return self.how in (SLOWER, BELOW)

    @property
    def bounds(self) -> tuple[float, float]:
        """The 95 % interval of the ratio of images/s; below six repeats its range."""
        return self.ratio.interval or self.ratio.range

    @property
    def words(self) -> str:
        """Such as `1.42x (95 % interval 1.40x to 1.45x, n = 6 pairs)`."""
        times, n = wording.ratio(self.ratio.median), self.ratio.n
        if n < 2:
            return f"{times} (n = {n})"
        kind = "95 % interval" if self.ratio.interval else "range"
        return f"{times} ({kind} {self.bounds_words}, n = {n}{' pairs' if self.ratio.paired else ''})"

    @property
    def bounds_words(self) -> str:
        """Such as `1.40x to 1.45x`, and whether cards differ."""
        low, high = map(wording.ratio, self.bounds)
        return f"{low} to {high}" + (f", on {self.other_cards}" if self.other_cards else "")

    @property
    def why_no_more(self) -> str:
        """Why ranges that keep apart are all that is known."""
        few = self.ratio.n < ENOUGH_FOR_INTERVAL
        return "fewer than 6 repeats say no more" if few else "repeats on several GPUs say no more"


def standing(row: Mapping | pd.Series, other: Mapping | pd.Series) -> Standing:
    """A cell's images/s over another's; both have `repeats`, as in a row of `tables.cells`.

    From six repeats on the pairs of one block decide where there are any (see `blocks.ratio`), else the
    repeats as long as all are of one GPU (or node): what two cards differ by is no merit of a cell. Below
    six, and on several cards, the range reaches from the slowest repeat over the fastest of the other to
    the fastest over the slowest.
    """
    ours, others = row["repeats"], other["repeats"]
    if min(len(ours), len(others)) >= ENOUGH_FOR_INTERVAL:
        ratio = paired_repeats.ratio(ours, others)
        if ratio.paired or paired_repeats.one_place(ours, others):
            return Standing(difference(ratio), ratio)
    ratio = replace(unpaired_ratio(ours["images_per_s"], others["images_per_s"]), log_interval=None)
    how = SAME if not ratio.apart else ABOVE if ratio.log_median > 0 else BELOW
    return Standing(how, ratio, paired_repeats.other_cards(ours, others))
