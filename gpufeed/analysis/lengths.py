"""Accuracy by the length of the run: cells that differ in their epochs alone, and what more of them bring."""

from collections.abc import Iterator

import pandas as pd

from gpufeed.analysis import tables, wording

EPOCHS = 20  # what a longer run brings is said for so many more epochs
LITTLE = 0.002  # and is little below that: 0.2 points of top-1
SAME = [*(column for column in tables.IDENTITY if column != "cell_id")]
SAME += [setting for setting in tables.SETTINGS if setting not in ("epochs", "step_limit")]


def section(own_records: pd.DataFrame) -> list[dict]:
    """What the page shows: a dict for each model and dataset with runs of several lengths.

    own_records: of one experiment, as `records.read_records` makes them; repeats without an accuracy and
    runs that end after so many steps do not count. top-1 are medians over the repeats.
    """
    known = own_records[own_records["top1"].notna() & own_records["step_limit"].isna()]
    return [described(rows) for rows in _series(known)]


def _series(known: pd.DataFrame) -> Iterator[pd.DataFrame]:
    for _, rows in known.groupby(SAME, dropna=False, sort=False):
        if rows["epochs"].nunique() > 1:
            yield rows


def described(rows: pd.DataFrame) -> dict:
    """Title, sentence and rows of one series."""
    top1 = rows.groupby("epochs")["top1"]
    found = pd.DataFrame({"median": top1.median(), "low": top1.min(), "high": top1.max(), "n": top1.size()})
    lengths = found.index.to_series().astype(float)
    found["gain"] = found["median"].diff() / lengths.diff() * EPOCHS  # of EPOCHS more, NaN for the shortest
    first = rows.iloc[0]
    return {
        "title": f"{first['model']} on {first['dataset']}",
        "sentence": sentence(found),
        "rows": [
            {
                "epochs": int(epochs),
                "n": int(row["n"]),
                "top1": percent(row["median"]),
                "range": f"{percent(row['low'])} to {percent(row['high'])}",
                "gain": "-" if pd.isna(row["gain"]) else f"{row['gain'] * 100:+.2f}",
            }
            for epochs, row in found.iterrows()
        ],
    }


def sentence(found: pd.DataFrame) -> str:
    """What the longest run reaches, and from which length on more epochs bring little."""
    last = found.iloc[-1]
    reached = f"{percent(last['median'])} after {wording.plural(int(found.index[-1]), 'epoch')}"
    reached += f" (range {percent(last['low'])} to {percent(last['high'])}, n = {int(last['n'])})."
    enough = from_where_on(found)
    if enough is None:
        gain = f"{last['gain'] * 100:.2f}"
        return f"{reached} At the end {EPOCHS} more epochs still bring {gain} points: longer runs are wanted."
    return f"{reached} From {enough} epochs on {EPOCHS} more bring less than {LITTLE * 100:g} points."


def from_where_on(found: pd.DataFrame) -> int | None:
    """The shortest length after which every longer one brings little; None if the longest brings more."""
    enough = None
    for shorter, longer in reversed(list(zip(found.index[:-1], found.index[1:], strict=True))):
        if found.at[longer, "gain"] >= LITTLE:
            break
        enough = int(shorter)
    return enough


def percent(share: float) -> str:
    """top-1 with two decimals, since tenths of a point are what is compared."""
    return f"{share * 100:.2f} %"
