"""The two sides of a comparison: their records, and which cells both sides have."""

import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from gpufeed.core.cells import without_later
from gpufeed.core.folders import records_below
from gpufeed.report.load_records import AXES, read_records, timed

MACHINE = ["hardware", "stack", "torch", "batch_size"]  # numbers of two of these never share a row
# What a cell does, where its name, which covers its data and seed too, differs from that of the other side.
SAME_SETTINGS = [
    "experiment", *(axis for axis in AXES if axis != "seed"), "step_limit", "precision", "overrides",
]  # fmt: skip


def read_side(folder: str | Path) -> pd.DataFrame:
    """All records below a folder, as `records.read_records` gives them; raises what records_below raises."""
    return read_records(records_below(folder))


def matched(
    ours: pd.DataFrame, base: pd.DataFrame
) -> tuple[list[tuple[pd.DataFrame, pd.DataFrame]], list[str], list[str]]:
    """The cells of both sides, and <experiment>/<cell> of those that only the first, or the second, has.

    Cells match by name within their experiment; what is left matches by settings, if just one cell of each
    side has them: the data may then differ.
    """
    a, b = _by_name(ours), _by_name(base)
    pairs = [(a.pop(name), b.pop(name)) for name in list(a) if name in b]
    of_a, of_b = _by_settings(a), _by_settings(b)
    for settings, name in of_a.items():
        if settings in of_b:
            pairs.append((a.pop(name), b.pop(of_b[settings])))
    return pairs, ["/".join(name) for name in a], ["/".join(name) for name in b]


def _by_name(records: pd.DataFrame) -> dict[tuple[str, str], pd.DataFrame]:
    return dict(iter(records.groupby(["experiment", "cell_id"], sort=False)))


def _by_settings(cells: dict[tuple[str, str], pd.DataFrame]) -> dict[tuple, tuple[str, str]]:
    """settings -> name, of the measured cells whose settings no other one shares."""
    found: dict[tuple, list[tuple[str, str]]] = {}
    for name, rows in cells.items():
        measured = timed(rows)
        if len(measured):
            found.setdefault(_settings(measured.iloc[0]), []).append(name)
    return {settings: names[0] for settings, names in found.items() if len(names) == 1}


def _settings(row: pd.Series) -> tuple:
    values = [row[name] for name in SAME_SETTINGS]
    hyper = without_later({"hyper": json.loads(row["hyper"])})  # as the digest in a name has it
    return *(None if pd.isna(value) else value for value in values), json.dumps(hyper, sort_keys=True)


def machines(
    ours: pd.DataFrame, base: pd.DataFrame
) -> tuple[list[tuple[pd.DataFrame, pd.DataFrame]], list[pd.DataFrame], list[pd.DataFrame]]:
    """The finished repeats of one cell, machine against machine, and what is left on either side.

    The same machine (MACHINE) first, then the same hardware with another stack, then any other: what two
    machines measured is not mixed, and what has no like of its own is refused later, with the reason.
    """
    a, b = ([rows for _, rows in side.groupby(MACHINE, dropna=False)] for side in (ours, base))
    pairs = []
    for same in (MACHINE, MACHINE[:1], []):
        for rows in list(a):
            if (other := next(_like(rows, b, same), None)) is not None:
                pairs.append((rows, b.pop(other)))
                a = [left for left in a if left is not rows]
    return pairs, a, b


def _like(rows: pd.DataFrame, others: list[pd.DataFrame], same: list[str]) -> Iterator[int]:
    """Where in `others` the rows with the same values of these columns are."""
    for number, other in enumerate(others):
        if all(rows[name].iloc[0] == other[name].iloc[0] for name in same):
            yield number
