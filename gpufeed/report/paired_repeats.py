"""Which repeats of two cells belong together: those of one block, on one GPU, in one run."""

import pandas as pd

from gpufeed.system.statistics import ENOUGH_FOR_INTERVAL, Ratio, paired_ratio, unpaired_ratio


def places(*sides: pd.DataFrame) -> list[pd.Series]:
    """Where each record was measured: the UUID of its GPU, else the machine, else the name of its node.

    The machine counts where all sides tell it, which records of older versions do not.
    """
    hosts = "machine" if all(side["machine"].notna().all() for side in sides) else "node"
    found = []
    for side in sides:
        uuids = side["gpu"].map(lambda gpu: gpu["uuid"] if isinstance(gpu, dict) else None)
        found.append(uuids.where(uuids.notna(), side[hosts]).astype(object))
    return found


def one_place(records: pd.DataFrame, others: pd.DataFrame) -> bool:
    """Whether no two repeats of two cells are known to be of two GPUs, or of two nodes without one."""
    return pd.concat(places(records, others)).nunique() < 2


def other_cards(records: pd.DataFrame, others: pd.DataFrame) -> str:
    """What two cells that were measured on other GPUs of one model share of them, in words; "" for the same.

    Cards of one model differ a little. A cell that does not tell its GPU is not told apart.
    """
    cards = [
        {gpu["uuid"] if isinstance(gpu, dict) else None for gpu in side["gpu"]} for side in (records, others)
    ]
    if any(None in side for side in cards) or cards[0] == cards[1]:
        return ""
    partly = "" if cards[0].isdisjoint(cards[1]) else "partly "
    return f"{partly}other cards of this model"


def pairs(records: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """The repeats of two cells that were measured in one block: place, repeat, rate, other (images/s).

    records, others: finished repeats of one cell each (columns as `records.read_records` makes them). A
    block is all repeats of one number on one GPU, or on one node where no GPU is known. The blocks of one run
    follow one another, while those of two runs do not: a place counts only if it has two blocks or more, and
    by the start times all of each came before all of the next. A number that a place has twice on one side
    pairs with nothing.
    """
    here, there = map(_by_block, (records, others), places(records, others))
    ours = here.merge(there, on=["place", "repeat"], suffixes=("", "_other"))
    in_order = [rows for _, rows in ours.groupby("place", sort=False) if _one_run(rows)]
    columns = {"images_per_s": "rate", "images_per_s_other": "other"}
    found = pd.concat(in_order) if in_order else ours.iloc[:0]
    return found.rename(columns=columns)[["place", "repeat", *columns.values()]].reset_index(drop=True)


def _by_block(records: pd.DataFrame, place: pd.Series) -> pd.DataFrame:
    rows = records[["repeat", "started_at", "images_per_s"]].assign(place=place)
    return rows.drop_duplicates(["place", "repeat"], keep=False)


def _one_run(rows: pd.DataFrame) -> bool:
    """Whether the blocks of one place follow one another, and there are two or more."""
    starts = rows.sort_values("repeat")[["started_at", "started_at_other"]].apply(
        pd.to_datetime, utc=True, format="ISO8601"
    )
    first, last = starts.min(axis=1), starts.max(axis=1)
    return len(rows) > 1 and bool((last[:-1].to_numpy() < first[1:].to_numpy()).all())


def ratio(records: pd.DataFrame, others: pd.DataFrame) -> Ratio:
    """Images/s of one cell over those of another, from their finished repeats.

    Paired by block where both were measured in one run, else the ratio of medians; that too where the pairs
    are too few for an interval and the repeats are not.
    """
    paired = paired_ratio(pairs(records, others)[["rate", "other"]].itertuples(index=False, name=None))
    if paired.n >= ENOUGH_FOR_INTERVAL:
        return paired
    apart = unpaired_ratio(records["images_per_s"], others["images_per_s"])
    return paired if paired.n and apart.n < ENOUGH_FOR_INTERVAL else apart
