"""Two runs, cell by cell: images/s of side A over those of side B, regressions first."""

from dataclasses import dataclass

import pandas as pd

from gpufeed.report import comparable, significance
from gpufeed.report.load_records import AXES, grouped, timed
from gpufeed.report.tables import as_in_names
from gpufeed.report.wording import machine
from gpufeed.system.statistics import FASTER, FEW, SAME, SLOWER, UNLIKE, Ratio, difference

MACHINE = ["hardware", "stack", "torch", "batch_size"]  # numbers of two of these never share a row
# What a cell does, where its name, which covers its data and seed too, differs from that of the other side.
SAME_SETTINGS = [
    "experiment", *(axis for axis in AXES if axis != "seed"), "cores_asked", "step_limit", "precision",
    "overrides",
]  # fmt: skip


def matched(
    ours: pd.DataFrame, base: pd.DataFrame
) -> tuple[list[tuple[pd.DataFrame, pd.DataFrame]], list[str], list[str]]:
    """Return the cells of both sides, and <experiment>/<cell> of those that only the first or the second has.

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
    """Return settings -> name, for the measured cells whose settings no other cell shares."""
    first = {name: timed(rows).iloc[0] for name, rows in cells.items() if len(timed(rows))}
    found = grouped(first, lambda name: _settings(first[name]))
    return {settings: names[0] for settings, names in found.items() if len(names) == 1}


def _settings(row: pd.Series) -> tuple:
    values = [row[name] for name in SAME_SETTINGS]
    return *(None if pd.isna(value) else value for value in values), as_in_names(row["hyper"])


def matched_machines(
    ours: pd.DataFrame, base: pd.DataFrame
) -> tuple[list[tuple[pd.DataFrame, pd.DataFrame]], list[pd.DataFrame], list[pd.DataFrame]]:
    """Return the finished repeats of a cell, paired by machine, and those left on either side.

    The same machine (MACHINE) first, then the same hardware with another stack, then any other: what two
    machines measured is not mixed, and what has no like of its own is refused later, with the reason.
    """
    a, b = ([rows for _, rows in side.groupby(MACHINE, dropna=False)] for side in (ours, base))
    pairs = []
    for same in (MACHINE, MACHINE[:1], []):
        for rows in list(a):
            own = rows[same].iloc[0].tolist()
            like = (at for at, other in enumerate(b) if other[same].iloc[0].tolist() == own)
            if (at := next(like, None)) is not None:
                pairs.append((rows, b.pop(at)))
                a = [left for left in a if left is not rows]
    return pairs, a, b


# Beside the verdicts on a ratio. FAILED: side B has finished repeats and side A none, one of which failed.
FAILED, REFUSED, UNMEASURED = "failed", "refused", "not measured"
ORDER = (SLOWER, FAILED, REFUSED, FEW, UNLIKE, SAME, FASTER, UNMEASURED)
RATE = ("images_per_s", "min", "max", "n")
COLUMNS = [
    "verdict", "experiment", "cell_id", "machine", "ratio", "low", "high", "bounds", "apart", "paired", "n",
    *(f"{side}_{name}" for side in "ab" for name in RATE), "forced", "reason", "notes",
]  # fmt: skip
NARROW = 0.05
BETWEEN = " | "  # of several reasons or notes: a sentence may have a semicolon


@dataclass(frozen=True)
class Comparison:
    """What two sides say together.

    rows: COLUMNS, a row a cell and machine, in the order of ORDER, the smallest ratio first. `low` and `high`
    are the 95 % interval, or without one the range, as `bounds` says. `reason`: why a cell is refused,
    was forced, or has no ratio.
    only: side -> cells that only it has, on a machine or at all; absent: those of B alone, at all.
    damaged: side -> files that are no records, each with the reason. machines: side -> where.
    """

    names: dict[str, str]
    rows: pd.DataFrame
    only: dict[str, list[str]]
    absent: list[str]
    damaged: dict[str, list[str]]
    machines: dict[str, list[str]]
    forced: bool

    def count(self, *verdicts: str) -> int:
        return int(self.rows["verdict"].isin(verdicts).sum())

    @property
    def regressed(self) -> bool:
        """Whether a cell is shown to be slower, or failed where it had not."""
        return self.count(SLOWER, FAILED) > 0

    @property
    def refused(self) -> bool:
        return self.count(REFUSED) > 0

    @property
    def judged(self) -> bool:
        """Whether any cell has the repeats to tell a regression from none."""
        return self.count(SLOWER, FAILED, SAME, FASTER) > 0

    @property
    def vanished(self) -> list[str]:
        """Cells of B alone, of experiments of which A has others: one that left no record may have failed."""
        with_a = {*self.rows["experiment"], *(name.split("/")[0] for name in self.only["A"])}
        return [name for name in self.absent if name.split("/")[0] in with_a]

    @property
    def intervals(self) -> pd.DataFrame:
        """The rows with a 95 % interval."""
        return self.rows[self.rows["bounds"] == "interval"]

    @property
    def repeated(self) -> int:
        """How many intervals hold 1 and stay within NARROW of their ratio: the one run repeats the other."""
        rows = self.intervals
        holds = (rows["low"] <= 1) & (rows["high"] >= 1)
        narrow = (rows["low"] >= rows["ratio"] * (1 - NARROW)) & (
            rows["high"] <= rows["ratio"] * (1 + NARROW)
        )
        return int((holds & narrow).sum())


def compare(
    ours: pd.DataFrame, base: pd.DataFrame, names: tuple[str, str] = ("A", "B"), force: bool = False
) -> Comparison:
    """Compare side A (ours) with side B (base), both as `read_records` returns them.

    Ratios are of images/s, A over B. Where both sides were measured in one run, in turns, they are paired by
    block; two runs, of different days, are not paired, and the ratio is that of their medians (see
    `paired_repeats`).
    A cell with a reason in `comparable.refusals` has no ratio, unless forced: then it has both.
    """
    pairs, only_a, only_b = matched(ours, base)
    absent = list(only_b)
    rows = []
    for a, b in pairs:
        done_a, done_b = timed(a), timed(b)
        if done_a.empty or done_b.empty:
            rows.append(_unmeasured(a, b))
            continue
        met, left_a, left_b = matched_machines(done_a, done_b)
        failures = [*_failures("A", a), *_failures("B", b)]
        rows += [_row(one, other, failures, force) for one, other in met]
        only_a += [_with_machine(left) for left in left_a]
        only_b += [_with_machine(left) for left in left_b]
    table = pd.DataFrame(rows, columns=COLUMNS)
    table["rank"] = table["verdict"].map(ORDER.index)
    table = table.sort_values(["rank", "ratio"], kind="stable").drop(columns="rank").reset_index(drop=True)
    return Comparison(
        names=dict(zip("AB", names, strict=True)),
        rows=table,
        only={"A": only_a, "B": only_b},
        absent=absent,
        damaged={"A": _damaged(ours), "B": _damaged(base)},
        machines={"A": _machines(ours), "B": _machines(base)},
        forced=bool(table["forced"].any()),
    )


def _failures(side: str, rows: pd.DataFrame) -> list[str]:
    """Return a note if some repeats of a cell failed and others finished."""
    failed = rows.loc[rows["status"] == "failed", "sentence"]
    if failed.empty:
        return []
    return [f"{len(failed)} of {len(rows)} repeats failed in {side}: {failed.iloc[0]}"]


def _row(ours: pd.DataFrame, base: pd.DataFrame, failures: list[str], force: bool) -> dict:
    """Return the row of one cell on one machine. failures: notes on its other repeats."""
    first, reasons = ours.iloc[0], comparable.refusals(ours, base)
    row = {
        **first[["experiment", "cell_id"]],
        "machine": machine(ours),
        "forced": bool(reasons) and force,
        "reason": BETWEEN.join(reasons),
        "notes": BETWEEN.join([*failures, *comparable.notes(ours, base)]),
        **_rate("a", ours),
        **_rate("b", base),
    }
    if reasons and not force:
        return row | {"verdict": REFUSED, "apart": False, "paired": False}
    return row | _judged(significance.ratio_of_repeats(ours, base))


def _judged(ratio: Ratio) -> dict:
    low, high = ratio.interval or ratio.range
    return {
        "verdict": difference(ratio),
        "ratio": ratio.median,
        "low": low,
        "high": high,
        "bounds": "interval" if ratio.interval else "range",
        "apart": ratio.apart,
        "paired": ratio.paired,
        "n": ratio.n,
    }


def _rate(side: str, rows: pd.DataFrame) -> dict:
    speeds = rows["images_per_s"].astype(float)
    values = (speeds.median(), speeds.min(), speeds.max(), len(speeds))
    return {f"{side}_{name}": value for name, value in zip(RATE, values, strict=True)}


def _unmeasured(a: pd.DataFrame, b: pd.DataFrame) -> dict:
    """Return the row of a cell that one side has not finished: why, and whether that is a regression."""
    failed = len(timed(b)) > 0 and (a["status"] == "failed").any()
    without = [(side, rows) for side, rows in (("A", a), ("B", b)) if timed(rows).empty]
    reasons = [f"{rows['status'].iloc[0]} in {side}: {_why_not(rows)}" for side, rows in without]
    return {
        "verdict": FAILED if failed else UNMEASURED,
        **a.iloc[0][["experiment", "cell_id"]],
        "machine": "",
        **dict.fromkeys(("apart", "paired", "forced"), False),
        "reason": BETWEEN.join(reasons),
        "notes": "",
        "a_n": len(timed(a)),
        "b_n": len(timed(b)),
    }


def _why_not(rows: pd.DataFrame) -> str:
    """Return why a cell has no rate."""
    if rows["resumed"].notna().any():
        return "taken up again after a stop, which is no timing"
    return next(iter(rows["sentence"].dropna()), "no reason was recorded")


def _with_machine(rows: pd.DataFrame) -> str:
    return f"{rows['experiment'].iloc[0]}/{rows['cell_id'].iloc[0]} ({machine(rows)})"


def _damaged(records: pd.DataFrame) -> list[str]:
    told = records.loc[records["status"] == "unusable", ["path", "sentence"]].itertuples(index=False)
    return [why if str(path) in why else f"{path}: {why}" for path, why in told]


def _machines(records: pd.DataFrame) -> list[str]:
    groups = timed(records).groupby(MACHINE, dropna=False, sort=False)
    return list(dict.fromkeys(machine(rows) for _, rows in groups))
