"""The part of the report on limits: each cell's verdict, the table, what was not measured, two figures.

One figure shows where a steady epoch of each cell goes, the other how fast each is and what AU it has.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from gpufeed.advice import paste
from gpufeed.benchmarks.ceilings.shares import END
from gpufeed.core import record
from gpufeed.core.plan_ceilings import DECODE, FETCH, TRANSFER
from gpufeed.report import downloads, style, wording
from gpufeed.report.comparison_text import piped
from gpufeed.report.load_records import Documents, machine_of, read_documents
from gpufeed.report.sections import ceilings_rows, ceilings_verdict
from gpufeed.report.sections.ceilings_rows import LIMITS, SIDES, Rows, groups, limits, parts, table
from gpufeed.report.tables import CELL_COLUMNS

WARM_UP = "an epoch or more of each side before the pairs, not counted"
Task = tuple[str, Rows]  # title, and rows as `groups` gives them
COLUMNS = ("Loader", "AU", "Wait", "Growth", "End to end", "Compute only", "Input only", "Verdict")


def joined(cells: pd.DataFrame, paths: Iterable[str | Path], experiment: str) -> pd.DataFrame:
    """Return the table of an experiment's cells with LIMITS, empty if no ceilings were measured."""
    found = limits(documents_of(paths, experiment).by_unit.values())
    return cells.merge(found, on=[name for name in found.columns if name not in LIMITS], how="left")


def documents_of(paths: Iterable[str | Path], experiment: str, planned: Sequence[str] = ()) -> Documents:
    return read_documents("ceilings", paths, experiment, record.CEILINGS.read, planned)


def whole(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the columns of `joined` that the downloads have, with predicted rates if there are any."""
    predicted = [name for name in cells.columns if name.startswith("predicted_")]
    return cells.reindex(columns=[*CELL_COLUMNS, *LIMITS, *predicted])


def measured(paths: Iterable[str | Path], experiments: Iterable[str]) -> pd.DataFrame:
    """Return one row a document of ceilings: dataset, loader, status, when and on what machine."""
    rows = [
        {
            **{key: found["cell"][key] for key in ("dataset", "loader")},
            **{key: found[key] for key in ("status", "finished_at")},
            **machine_of(found["cell"], found["resolved"], found["environment"]),
            "warmup": WARM_UP if found["status"] == "done" else None,
        }
        for name in experiments
        for found in documents_of(paths, name).by_unit.values()
    ]
    return pd.DataFrame(rows, columns=None if rows else ["dataset", "loader", "status", "finished_at"])


def section(
    paths: Iterable[str | Path], experiment: str, planned: Sequence[str], folders: Mapping[str, str]
) -> dict | None:
    """Return what the template shows of an experiment's ceilings; None if it neither has nor plans any.

    paths: documents of all experiments, <experiment>/<cell>.json. planned: ids of the cells whose ceilings
    are to be measured. folders: dataset -> the user's own folder of its class folders.
    """
    documents = documents_of(paths, experiment, planned)
    if not documents:
        return None
    measurements = list(documents.by_unit.values())
    documents.tell_unfinished()
    grouped, pictures = groups(measurements), []
    if grouped:
        pictures = [
            style.picture(draw_epochs(measurements), f"{experiment}-ceilings", EPOCHS_CAPTION),
            style.picture(draw_speeds(measurements), f"{experiment}-au", SPEEDS_CAPTION),
        ]
    return {
        "tasks": [task(title, rows, folders) for title, rows in grouped.items()],
        "pictures": pictures,
        "downloads": downloads.links(f"{experiment}-ceilings", table(measurements)),
        **documents.lacking,
    }


def task(title: str, rows: Rows, folders: Mapping[str, str]) -> dict:
    """Return table and headline of one task. rows: as `groups` returns them, the highest AU first.

    headline: the answer of an experiment whose ceilings are there before its repeats.
    """
    lines = [line(name, found) for name, found in rows]
    return {
        "title": title,
        "how": how(rows),
        "rows": lines,
        "headline": ceilings_rows.headline(rows),
        "mixed": ceilings_rows.mixed_origins(rows),
        "markdown": markdown(lines),
        "calls": calls(rows, folders),
    }


def markdown(lines: Sequence[Mapping]) -> str:
    """Return the table of a task as Markdown for a pull request."""
    rows = [
        [
            line["name"],
            f"{line['au']} ({line['au_interval']})" if line["au_interval"] else line["au"],
            *(line["wait"], line["growth"], *line["rates"][:-1]),
            f"{line['rates'][-1]} ({line['input']})" if line["input"] else line["rates"][-1],
            line["kind"],
        ]
        for line in lines
    ]
    return piped(COLUMNS, rows, range(1, len(COLUMNS) - 1))


def calls(rows: Rows, folders: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return (name, script to paste that loads as it did) for each row."""
    found = []
    for name, one in rows:
        cell = {"devices": 1, "nodes": 1, **one["cell"], "device": one["resolved"]["device"]}
        cell["workers"] = one["resolved"].get("workers", cell["workers"])
        cell |= one["resolved"].get("tuned", {})
        text = paste.script(cell, one["dataset"].get("cache"), folders.get(cell["dataset"]))
        if text is not None:
            found.append((name, text))
    return found


def how(rows: Rows) -> str:
    """Return how the numbers of a table were taken."""
    pairs = sorted({len(found["pairs"]) for _, found in rows})
    epochs = sorted({found["segment"]["epochs"] for _, found in rows})
    return (
        f"{wording.listing(pairs)} pairs of segments of {wording.listing(epochs)} "
        f"{'epoch' if epochs == [1] else 'epochs'} each, in the order ABBA in one process, through one step; "
        "input only and the loader's stages in rounds after them."
    )


def line(name: str, found: Mapping) -> dict:
    """Return one row of the table, in words."""
    shares = found["shares"]
    kind, _, evidence = ceilings_verdict.of(found).sentence.partition(": ")
    return {
        "name": name,
        "kind": kind,
        "evidence": f"{wording.capital(evidence)} {ceilings_verdict.input_sentence(found)}".rstrip(),
        "au": wording.tenths(shares["au"]["median"]),
        "au_interval": wording.interval(shares["au"]["ci95_low"], shares["au"]["ci95_high"]),
        "wait": wording.tenths(max(0.0, shares["wait"]["median"])),
        "growth": wording.tenths(max(0.0, shares["growth"]["median"])),
        "rates": [wording.count(found["images_per_s"][side]["median"]) for side in SIDES],
        "input": ceilings_verdict.input_mark(found),
        "stages": [stage(name, found["stages"][name]) for name in (DECODE, TRANSFER, FETCH)],
        "start": start(found["start_up"]),
    }


def stage(name: str, found: Mapping) -> str:
    """Return how long a stage takes, or why that is unknown."""
    if found["reason"]:
        return f"{name}: not measured. {found['reason']}"
    median, n = found["seconds"]["median"], found["seconds"]["n"]
    seconds = f"{wording.three_figures(max(0.0, median))} s an epoch of the loader alone"
    if unsettled(found):
        return f"{name}: not settled. {disagreement(found['seconds'])}"
    if not found["shown"]:
        known = seconds if median > 0 else "below zero"
        return f"{name}: not shown to take any time (in the median of {n} rounds {known})"
    seconds += f" (median of {n} rounds)"
    of = "an epoch with files that are not in the page cache" if name == FETCH else "the epoch"
    points = ceilings_verdict.points_of(found["points"])
    return (
        f"{name}: {seconds}; without it at most {ceilings_verdict.times(found['at_most'])}, {points} of {of}"
    )


def unsettled(found: Mapping) -> bool:
    """Return whether a stage's rounds disagree: a median worth noting, and a round of zero or less."""
    seconds = found["seconds"]
    noted = seconds["median"] >= ceilings_verdict.NOTED * found["end_to_end_s"]
    return not found["shown"] and noted and seconds["min"] <= 0


def disagreement(seconds: Mapping) -> str:
    """Return the sentence on rounds that disagree: their number, median and maximum."""
    median, most = (wording.three_figures(seconds[end]) for end in ("median", "max"))
    return (
        f"One or more of {seconds['n']} rounds say that it takes nothing or less, the median {median} s "
        f"an epoch of the loader alone, the longest {most} s"
    )


def start(found: Mapping[str, float]) -> str:
    """Return the times before the steady epochs, in words."""
    seconds = {name: wording.three_figures(value) for name, value in found.items()}
    return (
        f"set up in {seconds['setup_s']} s (the loader in {seconds['open_s']} s); first batch of all after "
        f"{seconds['first_batch_s']} s, first epoch {seconds['first_epoch_s']} s, steady epochs "
        f"{seconds['epoch_s']} s, of which {seconds['epoch_start_s']} s for their first batch"
    )


BARS_HEAD_IN = 0.85
VISIBLE = 0.002  # share of the longest bar: what is thinner is not in the legend
# Hatches tell them apart in a grey print, and the light ones stand beside dark ones.
LOOKS = {
    "compute": (style.BLUE, "", "compute: what remains without any input"),
    "first batch": (style.GREY, "xx", "wait for the first batch of the epoch"),
    "decode": (style.VERMILION, "//", "wait, decode"),
    "transfer": (style.ORANGE, "..", "wait, transfer"),
    "other wait": (style.SKY, "\\\\", "wait, not told apart"),
    "growth": (style.GREEN, "++", "steps slower beside the loader"),
}
NOTHING = "Nothing to draw: no cell has been compared with the limit."
EPOCHS_CAPTION = (
    "Where a steady epoch of each pipeline goes, end to end. Compute is what remains where one batch on the "
    "device is trained on again and again; the rest is what the input costs: the wait, by what difference "
    "runs of the loader say of it, and what the steps themselves take longer beside the loader. What falls "
    "on the first batch of an epoch, decode too, stands there and not with its stage. Beside each bar its "
    "AU, the share of compute, and its verdict."
)


def draw_epochs(measurements: Sequence[Mapping]) -> Figure:
    """Draw where a steady epoch of each pipeline goes: a panel a task, of those that are done."""
    drawn = list(groups(measurements).items())
    seen = {name for _, rows in drawn for name in _visible(rows)}
    looks = [look for name, look in LOOKS.items() if name in seen]
    legend = {"handles": style.patches(looks), "ncols": 2, "fontsize": 8.5}
    more = 0.1 + 0.2 * -(-len(looks) // 2)

    def height(task: Task) -> float:
        return style.rows_in(name for name, _ in task[1])

    return style.panels(drawn, _epochs_panel, height, NOTHING, more, legend, BARS_HEAD_IN)


def _longest(rows: Rows) -> float:
    """Return the seconds of the longest epoch."""
    return max(sum(parts(found).values()) for _, found in rows)


def _visible(rows: Rows) -> set[str]:
    """Return the parts that can be seen in some bar of a panel."""
    least = VISIBLE * _longest(rows)
    return {name for _, found in rows for name, seconds in parts(found).items() if seconds > least}


def _epochs_panel(axis: Axes, task: Task) -> None:
    title, rows = task
    words = []
    for y, (who, found) in enumerate(rows):
        seconds, left = parts(found), 0.0
        for name, (colour, hatch, _) in LOOKS.items():
            if seconds[name] > 0:
                bar = {"color": colour, "hatch": hatch, "edgecolor": "white", "lw": 0.6, "zorder": 2}
                (part,) = axis.barh(y, seconds[name], left=left, height=style.BAR, **bar)
                style.hint(part, f"{who}, {name}: {wording.three_figures(seconds[name])} s")
                left += seconds[name]
        share = found["shares"]["au"]["median"]
        words.append(f"AU {wording.tenths(share)}, {ceilings_verdict.of(found).kind}")
    style.rows(axis, [name for name, _ in rows], words)
    axis.set(xlim=(0, _longest(rows) * 1.02), xlabel="seconds of an epoch, mean over the pairs")
    axis.set_title(style.title(title))
    axis.grid(axis="x", zorder=0)


AXES_IN, AXES_HEAD_IN, NAME_IN = 2.6, 0.9, 0.18
AXES_ROOM = 1.08  # of the scale, so that the fastest lies below the edge of its panel
TEN, RIM = 0.1, 0.01  # the scale of AU begins at a ten, and below the lowest by what keeps its marker whole
SPEEDS_CAPTION = (
    "Images per second end to end against AU, with the 95 % intervals over the pairs; the scale of AU begins "
    "below the lowest, and the names have their AU, the highest first. The dashed line is "
    "an AU of 100 %: to its left the device is lost to the input. Of pipelines with the same AU the "
    "higher one has the cheaper work on the device, such as another augment. A task with one pipeline has no "
    "panel beside tasks with several."
)


def draw_speeds(measurements: Sequence[Mapping]) -> Figure:
    """Draw images/s against AU: a panel a task, of those with several pipelines if there are any."""
    drawn = groups(measurements)
    drawn = {title: rows for title, rows in drawn.items() if len(rows) > 1} or drawn

    def height(task: Task) -> float:
        return AXES_HEAD_IN + AXES_IN + NAME_IN * len(task[1])

    return style.panels(list(drawn.items()), _speeds_panel, height, NOTHING)


def _speeds_panel(axis: Axes, task: Task) -> None:
    title, rows = task
    axis.set_title(style.title(title))
    for number, (name, found) in enumerate(rows):
        au, rate = found["shares"]["au"], found["images_per_s"][END]
        axis.errorbar(
            [au["median"]], [rate["median"]], xerr=_reach(au), yerr=_reach(rate), capsize=3, lw=1.2, ms=7,
            label=f"{name}: {wording.tenths(au['median'])}", **_point(number),
        )  # fmt: skip
        said = f"{name}: AU {wording.tenths(au['median'])}, {wording.count(rate['median'])} images/s"
        style.hint_points(axis, [au["median"]], [rate["median"]], [said])
    axis.axvline(1, color="black", lw=1, ls="--")
    scale = _scale([found["shares"]["au"] for _, found in rows])
    axis.set(xlim=scale, xlabel="AU: compute-only over end-to-end time")
    fastest = max(found["images_per_s"][END]["max"] for _, found in rows)
    axis.set(ylim=(0, AXES_ROOM * fastest), ylabel="images per second, end to end")
    axis.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axis.xaxis.set_major_locator(MaxNLocator(steps=(1, 2, 5, 10)))  # whole percents
    axis.yaxis.set_major_formatter("{x:,g}")
    axis.grid(True)
    axis.legend(loc="upper left", bbox_to_anchor=(0, -0.6 / AXES_IN), fontsize=9)


def _scale(shares: Sequence[Mapping]) -> tuple[float, float]:
    """Return the axis: from the multiple of 10 % below the lowest AU to just beyond the highest or 100 %."""
    known = [value for au in shares for value in (au["median"], au["ci95_low"], au["ci95_high"]) if value]
    low = min(1 - TEN, max(0.0, TEN * math.floor((min(known) - RIM) / TEN)))
    high = max(1.0, *known)
    return low, high + (high - low) / 20


def _point(number: int) -> dict[str, str]:
    """Return the look of a point; filled ones have a white rim, which separates overlapping ones."""
    point = style.point(number)
    return point if point["mfc"] == "white" else {**point, "mec": "white"}


def _reach(of: Mapping) -> list[list[float]] | None:
    """Return the distances from the median to the ends of the interval; None without one."""
    if of["ci95_low"] is None:
        return None
    return [[max(0.0, of["median"] - of["ci95_low"])], [max(0.0, of["ci95_high"] - of["median"])]]
