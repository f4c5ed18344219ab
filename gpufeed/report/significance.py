"""Whether one cell is faster than another: the ratio of their rates, its range, and what that allows to say.

First where repeats were measured and which of two cells are pairs of one block, then the ratio over them,
then `standing`, by which every table, figure and sentence compares.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pandas as pd

from gpufeed.report import wording
from gpufeed.report.load_records import nested
from gpufeed.system.statistics import (
    ENOUGH_FOR_INTERVAL,
    FASTER,
    SAME,
    Ratio,
    difference,
    paired_ratio,
    unpaired_ratio,
)


def places(*sides: pd.DataFrame) -> list[pd.Series]:
    """Return where each record was measured: the UUID of its GPU, else the machine, else its node.

    The machine counts where all sides tell it, which records of older versions do not.
    """
    hosts = "machine" if all(side["machine"].notna().all() for side in sides) else "node"
    found = []
    for side in sides:
        uuids = side["gpu"].map(lambda gpu: nested(gpu, "uuid"))
        found.append(uuids.where(uuids.notna(), side[hosts]).astype(object))
    return found


def one_place(records: pd.DataFrame, others: pd.DataFrame) -> bool:
    """Return whether no two repeats of two cells are known to be of two GPUs, or nodes without one."""
    return pd.concat(places(records, others)).nunique() < 2


def other_cards(records: pd.DataFrame, others: pd.DataFrame) -> str:
    """Return which GPUs of one model two cells do not share, in words; "" for the same or unknown.

    Cards of one model differ a little. A cell without a recorded GPU counts as on the same.
    """
    cards = [{nested(gpu, "uuid") for gpu in side["gpu"]} for side in (records, others)]
    if any(None in side for side in cards) or cards[0] == cards[1]:
        return ""
    partly = "" if cards[0].isdisjoint(cards[1]) else "partly "
    return f"{partly}other cards of this model"


# A block is one comparison: every loader once, within ten minutes; slow loaders and waiting jobs take longer.
BLOCK, SLACK = pd.Timedelta(minutes=10), 2


def paired_repeats(records: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """Return the repeats of two cells from one block: place, repeat, rate, other (images/s).

    records, others: finished repeats of one cell each (columns as `read_records` makes them). A
    block is all repeats of one number on one GPU, or on one node where no GPU is known, which began within
    BLOCK times SLACK. Blocks of several machines count one by one. On each place they follow one another:
    two runs, of which the second began when the first was over, have none in common. A repeat that could
    be in two blocks pairs with nothing.
    """
    here, there = map(_by_block, (records, others), places(records, others))
    ours = here.merge(there, on=["place", "repeat"], suffixes=("", "_other"))
    ours = ours[(ours["started_at"] - ours["started_at_other"]).abs() <= BLOCK * SLACK]
    twice = [ours.duplicated(["place", "repeat", start], keep=False) for start in STARTS]
    ours = ours[~(twice[0] | twice[1])]
    ours = ours.groupby("place").filter(_one_run)
    columns = {"images_per_s": "rate", "images_per_s_other": "other"}
    return ours.rename(columns=columns)[["place", "repeat", *columns.values()]].reset_index(drop=True)


STARTS = ("started_at", "started_at_other")


def _by_block(records: pd.DataFrame, place: pd.Series) -> pd.DataFrame:
    rows = records[["repeat", "started_at", "images_per_s"]].assign(place=place)
    return rows.assign(started_at=pd.to_datetime(rows["started_at"], utc=True, format="ISO8601"))


def _one_run(rows: pd.DataFrame) -> bool:
    """Return whether the blocks of one place follow one another, in whatever order of their numbers."""
    starts = rows[list(STARTS)]
    ends = pd.DataFrame({"first": starts.min(axis=1), "last": starts.max(axis=1)}).sort_values("first")
    return bool((ends["last"][:-1].to_numpy() < ends["first"][1:].to_numpy()).all())


def ratio_of_repeats(records: pd.DataFrame, others: pd.DataFrame) -> Ratio:
    """Return images/s of one cell over those of another, from their finished repeats.

    Paired by block where both were measured in one run, else the ratio of medians; that too where the pairs
    are too few for an interval and the repeats are not.
    """
    paired = paired_ratio(
        paired_repeats(records, others)[["rate", "other"]].itertuples(index=False, name=None)
    )
    if paired.n >= ENOUGH_FOR_INTERVAL:
        return paired
    apart = unpaired_ratio(records["images_per_s"], others["images_per_s"])
    return paired if paired.n and apart.n < ENOUGH_FOR_INTERVAL else apart


# Below six repeats, and on several cards, there are ranges alone: they keep apart, and no more is claimed.
ABOVE, BELOW = "range above", "range below"


@dataclass(frozen=True)
class Standing:
    """`how`: FASTER, SLOWER or SAME by the 95 % interval; ABOVE, BELOW or SAME where there is none.

    other_cards: which GPUs of one model they do not share, in words; "" for the same. unequal: whether there
    is no interval because number and spread of the repeats differ.
    """

    how: str
    ratio: Ratio
    other_cards: str = ""
    unequal: bool = False

    @property
    def ahead(self) -> bool:
        return self.how in (FASTER, ABOVE)

    @property
    def bounds(self) -> tuple[float, float]:
        """The 95 % interval of the ratio of images/s; without one its range."""
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
        if self.ratio.n < ENOUGH_FOR_INTERVAL:
            return "fewer than 6 repeats say no more"
        if self.unequal:
            return "repeats that differ in number and spread say no more"
        return "repeats on several GPUs say no more"


def standing(row: Mapping | pd.Series, other: Mapping | pd.Series) -> Standing:
    """Compare a cell's images/s with another's; both have `repeats`, as rows of `tables.cells` do.

    From six repeats on the pairs of one block decide where there are any (see `ratio_of_repeats`), else the
    repeats as long as all are of one GPU (or node): what two cards differ by is no merit of a cell. Below
    six, on several cards, and where number and spread differ, the range reaches from the slowest repeat
    over the fastest of the other to the fastest over the slowest.
    """
    ours, others, unequal = row["repeats"], other["repeats"], False
    if min(len(ours), len(others)) >= ENOUGH_FOR_INTERVAL:
        ratio = ratio_of_repeats(ours, others)
        unequal = ratio.log_interval is None
        if not unequal and (ratio.paired or one_place(ours, others)):
            return Standing(difference(ratio), ratio)
    ratio = replace(unpaired_ratio(ours["images_per_s"], others["images_per_s"]), log_interval=None)
    how = SAME if not ratio.apart else ABOVE if ratio.log_median > 0 else BELOW
    return Standing(how, ratio, other_cards(ours, others), unequal)
