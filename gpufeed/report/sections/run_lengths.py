"""Accuracy by the length of the run: what the last epochs of a run brought, and what a longer run brings."""

import math
from collections.abc import Sequence

import pandas as pd

from gpufeed.report import tables
from gpufeed.report.wording import hundredths, plural, points

EPOCHS = 20  # what more epochs bring is said for so many
LITTLE = 0.002  # and is little below that: 0.2 points of top-1
SAME = [column for column in tables.IDENTITY if column != "cell_id"]
SAME += [setting for setting in tables.SETTINGS if setting not in ("epochs", "step_limit")]


def section(own_records: pd.DataFrame) -> list[dict]:
    """Return a dict for each model and dataset with runs of several lengths, or with a long one.

    own_records: of one experiment, as `read_records` makes them; repeats without an accuracy and
    runs that end after so many steps do not count. A single length counts if it is longer than EPOCHS and
    was evaluated after each. top-1 are medians over the repeats.
    """
    known = own_records[own_records["top1"].notna() & own_records["step_limit"].isna()]
    known = known.assign(late=[late_gain(epochs) for epochs in known["epoch_rows"]])
    groups = (rows for _, rows in known.groupby(SAME, dropna=False, sort=False))
    return [described(rows) for rows in groups if rows["epochs"].nunique() > 1 or rows["late"].notna().any()]


def late_gain(epochs: Sequence[dict]) -> float:
    """Return top-1 after the last epoch minus that EPOCHS before; NaN if either was not evaluated."""
    if len(epochs) <= EPOCHS:
        return math.nan
    then, last = (epochs[place].get("accuracy") for place in (-1 - EPOCHS, -1))
    return last["top1"] - then["top1"] if then and last else math.nan


def described(rows: pd.DataFrame) -> dict:
    """Return title, sentence and rows of one series."""
    found = by_length(rows)
    first = rows.iloc[0]
    return {
        "title": f"{first['model']} on {first['dataset']}",
        "sentence": sentence(found),
        "rows": found.reset_index().to_dict("records"),
    }


def by_length(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each number of epochs, ascending.

    median, low, high, n: of top-1. late, late_low, late_high: what a run's last EPOCHS brought. gain: what
    EPOCHS more bring after the length above, by runs of their own, NaN for the shortest.
    """
    top1, late = (rows.groupby("epochs")[column] for column in ("top1", "late"))
    found = pd.DataFrame({"median": top1.median(), "low": top1.min(), "high": top1.max(), "n": top1.size()})
    found = found.assign(late=late.median(), late_low=late.min(), late_high=late.max())
    lengths = found.index.to_series().astype(float)
    return found.assign(gain=found["median"].diff() / lengths.diff() * EPOCHS)


def sentence(found: pd.DataFrame) -> str:
    """Return what the longest run reaches, what its last epochs gained, and what longer runs gain."""
    last = found.iloc[-1]
    reached = f"{hundredths(last['median'])} after {plural(int(found.index[-1]), 'epoch')}"
    reached += f" (range {hundredths(last['low'])} to {hundredths(last['high'])}, n = {int(last['n'])})."
    return " ".join(part for part in (reached, of_the_end(last), of_lengths(found)) if part)


def of_the_end(last: pd.Series) -> str:
    """Return what the last epochs of the longest run gained; empty if unknown."""
    if pd.isna(last["late"]):
        return ""
    low, high = points(last["late_low"]), points(last["late_high"])
    verdict = f"less than {LITTLE * 100:g} within the run" if last["late"] < LITTLE else "not trained out"
    return f"Its last {EPOCHS} brought {points(last['late'])} points (range {low} to {high}): {verdict}."


def of_lengths(found: pd.DataFrame) -> str:
    """Return from which length on more epochs gain little; empty if there is one length."""
    if len(found) == 1:
        return ""
    gained = found.index[found["gain"] >= LITTLE]
    enough = gained[-1] if len(gained) else found.index[0]  # beyond it all gains are small
    if enough == found.index[-1]:
        gain = f"{found['gain'].iloc[-1] * 100:.2f}"
        return f"At the end {EPOCHS} more epochs still bring {gain} points: longer runs are wanted."
    return f"From {enough} epochs on {EPOCHS} more bring less than {LITTLE * 100:g} points."
