"""The impact table: what each single change of a pipeline is worth, and whether that is shown at all.

A change is two cells that differ in one axis. Its factor is images per second after over before, with the
95 % interval, or below six repeats with the range from the slowest after over the fastest before to the
fastest after over the slowest before (see `standing`). The figure shows each factor with its range.
"""

from collections.abc import Mapping
from math import ceil, floor

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from gpufeed.core.loader_setting import AXES as TUNED_AXES
from gpufeed.report import style, tables, wording
from gpufeed.report.claims import FAILS, HOLDS, OPEN
from gpufeed.report.significance import ABOVE, BELOW, standing
from gpufeed.system.statistics import BUSY, FASTER, SAME, SLOWER

MACHINE = ["dataset", "hardware", "device", "stack", "torch"]
NOT_SHOWN = "not shown to differ"
FEW, DISTURBED = "one repeat is too few", "measurement disturbed"
MOST_NAMED = 3  # changes in the sentence
CAPTION = (
    "What each change is worth: images per second after it over before, with the 95 % interval, below six "
    "repeats the range. Right of the line is faster; grey is what is not shown to differ."
)


def section(cells: pd.DataFrame, plan: Mapping | None, name: str) -> dict | None:
    """Return what the page shows of an experiment's changes; None if it plans none.

    cells: of this experiment, as `tables.cells` makes them. plan: a gpufeed.core.plan_impact.Impact as a
    dict. name: of the experiment. Changes of which a cell has no finished repeat are counted in `missing`.
    """
    if not plan:
        return None
    said, machines = {"context": plan["context"], "planned": len(plan["changes"]), "pictures": []}, []
    for _, rows in tables.measured(cells).groupby(MACHINE, dropna=False, sort=False):
        changes, goals = compared(rows, plan["changes"]), judged(rows, plan["goals"])
        if changes or goals:
            machines.append(
                {
                    "title": f"{rows['dataset'].iloc[0]}; {wording.machine(rows)}",
                    "sentence": sentence(changes),
                    "rows": changes,
                    "goals": goals,
                    "missing": len(plan["changes"]) - len(changes),
                }
            )
    if drawn := [machine for machine in machines if machine["rows"]]:
        said["pictures"] = [style.picture(factors(drawn), f"{name}-impact", CAPTION)]
    return {**said, "machines": machines}


def compared(rows: pd.DataFrame, changes: list[Mapping]) -> list[dict]:
    """Return the changes whose two cells are among `rows`, of one machine, in the order of the plan."""
    found = []
    for change in changes:
        before, after = cell(rows, change["before"]), cell(rows, change["after"])
        if before is not None and after is not None:
            said = {"change": change["words"]}
            said |= {"from": value(change, "before", "after"), "to": value(change, "after", "before")}
            found.append({**said, **worth(before, after), "before": numbers(before), "after": numbers(after)})
    return found


def cell(rows: pd.DataFrame, axes: Mapping) -> pd.Series | None:
    """Return the row with these axes, whatever its dataset; None if it was not measured."""
    wanted = {name: value for name, value in axes.items() if name not in ("dataset", "smallest_batch_size")}
    wanted |= {"overrides": "; ".join(axes["overrides"]), "step_limit": wanted.pop("steps")}
    wanted["cores_asked"] = wanted.pop("cores") or 0
    if wanted["settings"]:  # records say what a tuning chose
        wanted = {name: value for name, value in wanted.items() if name not in TUNED_AXES}
    for axis in ("precision", "cuda_graphs", "workers"):  # records say what auto came to
        if wanted.get(axis) == "auto":
            del wanted[axis]
    for name, own in wanted.items():
        rows = rows[rows[name].isna() if own is None else rows[name].eq(own).fillna(False).astype(bool)]
    return rows.iloc[0] if len(rows) else None


def value(change: Mapping, side: str, other: str) -> str:
    """Return what the changed axis is on one side, in words."""
    axis, own, others = change["axis"], change[side][change["axis"]], change[other][change["axis"]]
    if axis == "overrides":
        return ", ".join(text for text in own if text not in others) or "default"
    if axis in wording.FEATURES and axis != "augment":
        return wording.setting(axis, own, change[side]["loader"])
    return str(own)


def worth(before: pd.Series, after: pd.Series) -> dict:
    """Return the verdict on two cells, and the factor with low and high, as numbers and in words."""
    side = standing(after, before)
    found = {"factor": side.ratio.median, "low": side.bounds[0], "high": side.bounds[1]}
    if {"disturbed", BUSY} & {before["against_ceiling"], after["against_ceiling"]}:
        verdict = DISTURBED
    elif min(before["n_repeats"], after["n_repeats"]) < 2:
        verdict = FEW
    else:
        verdict = NOT_SHOWN if side.how == SAME else side.how
    words = {
        "factor_words": wording.ratio(found["factor"]),
        "range_words": side.bounds_words,
        "bounds": "95 % interval" if side.ratio.interval else "range",
    }
    return {**found, **words, "verdict": verdict}


def numbers(row: pd.Series) -> dict[str, str | int]:
    """Return epoch, rate and stall of a cell with their ranges, in words, and n."""
    found: dict[str, str | int] = {"n": int(row["n_repeats"])}
    for name, (column, say) in NUMBERS.items():
        found[name] = say(row[column])
        found[f"{name}_range"] = f"{say(row[f'{column}_min'])} to {say(row[f'{column}_max'])}"
    return found


NUMBERS = {  # of a cell: (column of the table of cells, how it is said)
    "epoch": ("epoch_s", wording.three_figures),
    "rate": ("images_per_s", wording.count),
    "stall": ("wait_share", wording.percent),
}


def sentence(changes: list[dict]) -> str:
    """Return the changes that are worth most, those that cost, and how many are not shown to differ."""
    faster = [row for row in changes if row["verdict"] in (FASTER, ABOVE)]
    slower = [row for row in changes if row["verdict"] in (SLOWER, BELOW)]
    faster.sort(key=lambda row: -row["factor"])
    slower.sort(key=lambda row: row["factor"])
    parts = []
    for rows, how in ((faster, "Worth most"), (slower, "Slower")):
        if rows:
            parts.append(f"{how}: {'; '.join(map(_named, rows[:MOST_NAMED]))}.")
    if any(row["verdict"] in (ABOVE, BELOW) for row in faster + slower):
        parts.append(
            "A range, of fewer than 6 repeats or of several GPUs, says no more than that it keeps apart."
        )
    if same := sum(row["verdict"] == NOT_SHOWN for row in changes):
        parts.append(f"Not shown to differ: {same} of {wording.plural(len(changes), 'change')}.")
    return " ".join(parts)


def _named(row: Mapping) -> str:
    by_range = " by range" if row["verdict"] in (ABOVE, BELOW) else ""
    return f"{row['change']}, {wording.ratio(row['factor'])}{by_range}"


def judged(rows: pd.DataFrame, goals: list[Mapping]) -> list[dict]:
    """Return the goals whose cells are among `rows`: answer and sentence, by the whole interval or range."""
    found = []
    for goal in goals:
        ours = cell(rows, goal["cell"])
        if ours is None:
            continue
        if goal["over"] is None:
            found.append(within(ours, goal))
        elif (other := cell(rows, goal["over"])) is not None:
            found.append(ahead(ours, other, goal))
    return found


def within(row: pd.Series, goal: Mapping) -> dict:
    """Judge whether an epoch of the cell is short enough."""
    limit, few = goal["epoch_s"], row["n_repeats"] < 2
    own = numbers(row)
    return {
        "goal": f"{goal['words']}: an epoch in less than {limit:g} s",
        "answer": answer(row["epoch_s_max"] < limit, row["epoch_s_min"] >= limit, [row]),
        "short": f"{own['epoch']} s (range {own['epoch_range']} s, n = {own['n']})",
        "sentence": f"{own['epoch']} s an epoch (range {own['epoch_range']} s, n = {own['n']}), "
        f"{own['rate']} images/s (range {own['rate_range']}), stall {own['stall']}"
        + ("; one repeat is too few to judge it by." if few else "."),
    }


def ahead(row: pd.Series, other: pd.Series, goal: Mapping) -> dict:
    """Judge whether the cell is so many times as fast as the other."""
    lead, own, over = worth(other, row), numbers(row), numbers(other)
    n = min(row["n_repeats"], other["n_repeats"])
    return {
        "goal": f"{goal['words']}: at least {wording.ratio(goal['times'])}",
        "answer": answer(lead["low"] >= goal["times"], lead["high"] < goal["times"], [row, other]),
        "short": f"{lead['factor_words']} ({lead['bounds']} {lead['range_words']}, n = {n})",
        "sentence": f"{lead['factor_words']} ({lead['bounds']} {lead['range_words']}): "
        f"{own['rate']} images/s (range {own['rate_range']}, n = {own['n']}) over {over['rate']} "
        f"(range {over['rate_range']}, n = {over['n']})"
        + ("; one repeat is too few to judge it by." if n < 2 else "."),
    }


def answer(reached: bool, missed: bool, rows: list[pd.Series]) -> str:
    """Return OPEN if the range does not settle it, or a cell has one repeat or a disturbed one."""
    sound = all(row["n_repeats"] > 1 and row["against_ceiling"] not in ("disturbed", BUSY) for row in rows)
    if not sound or not (reached or missed):
        return OPEN
    return HOLDS if reached else FAILS


REST_IN = 0.85
AHEAD, BEHIND = (style.BLUE, "o"), (style.VERMILION, "s")
LOOKS = {FASTER: AHEAD, ABOVE: AHEAD, SLOWER: BEHIND, BELOW: BEHIND}  # anything else is grey
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
STEPS, MOST_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2), 7


def factors(machines: list[dict]) -> Figure:
    """Draw a panel a machine, a row a change. machines: of `impact.section`, each with a row at least."""
    return style.panels(machines, _panel, _height, head=REST_IN)


def _height(machine: dict) -> float:
    """Return the height of a panel in inches, by the longest name of a change."""
    return style.rows_in([row["change"] for row in machine["rows"]], words(machine))


def words(machine: dict) -> list[str]:
    """Return factor and verdict of each change."""
    return [f"{wording.ratio(row['factor'])} {row['verdict']}" for row in machine["rows"]]


def ticks(low: float, high: float) -> list[float]:
    """Return factors from low to high: of TICKS, or if fewer than two, by the finest of STEPS that is few."""
    found = [tick for tick in TICKS if low <= tick <= high]
    if len(found) > 1:
        return found
    step = next((step for step in STEPS if (high - low) / step <= MOST_TICKS), STEPS[-1])
    return [round(step * n, 2) for n in range(ceil(low / step), floor(high / step) + 1)]


def _panel(axis: Axes, machine: dict) -> None:
    rows = machine["rows"]
    axis.axvline(1, color="black", lw=1)
    for y, row in enumerate(rows):
        colour, marker = LOOKS.get(row["verdict"], (style.GREY, "D"))
        reach = [[row["factor"] - row["low"]], [row["high"] - row["factor"]]]
        axis.errorbar([row["factor"]], [y], xerr=reach, color=colour, marker=marker, ms=6, capsize=3, lw=1.4)
        said = f"{row['change']}: {row['factor_words']} ({row['range_words']}), {row['verdict']}"
        style.hint_points(axis, [row["factor"]], [y], [said])
    low, high = min(row["low"] for row in rows), max(row["high"] for row in rows)
    axis.set(xscale="log", xlim=(min(low, 0.9) / 1.1, max(high, 1.1) * 1.1))
    axis.set_xticks(ticks(*axis.get_xlim()))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter("{x:g}x")
    style.rows(axis, [row["change"] for row in rows], words(machine))
    axis.set_xlabel("images per second after the change over before; bars: 95 % interval, or range")
    axis.set_title(style.title(machine["title"]))
    axis.grid(axis="x", color="#DDDDDD")
