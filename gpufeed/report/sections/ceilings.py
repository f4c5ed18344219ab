"""The part of the report on limits: each cell's verdict, the table, the figure, and what was not measured."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from gpufeed.core import record
from gpufeed.core.file_writes import write_whole
from gpufeed.core.plan_ceilings import DECODE, FETCH, TRANSFER
from gpufeed.report import downloads, loader_call, style, wording
from gpufeed.report.comparison_text import piped
from gpufeed.report.load_records import machine_of, read_documents
from gpufeed.report.sections import ceilings_figure, ceilings_rows, ceilings_verdict, speed_utilization_figure
from gpufeed.report.sections.ceilings_rows import LIMITS, SIDES, groups, limits, table
from gpufeed.report.tables import CELL_COLUMNS

WARM_UP = "an epoch or more of each side before the pairs of ceilings, not counted"
COLUMNS = ("Loader", "AU", "Wait", "Growth", "End to end", "Compute only", "Input only", "Verdict")


def joined(cells: pd.DataFrame, paths: Iterable[str | Path], experiment: str) -> pd.DataFrame:
    """The table of an experiment's cells with LIMITS, empty where no ceilings were measured."""
    read, _ = read_documents(paths, experiment, record.read_ceilings)
    found = limits(read.values())
    return cells.merge(found, on=[name for name in found.columns if name not in LIMITS], how="left")


def whole(cells: pd.DataFrame) -> pd.DataFrame:
    """The columns of `joined` that its downloads have."""
    return cells.reindex(columns=[*CELL_COLUMNS, *LIMITS])


def measured(paths: Iterable[str | Path], experiments: Iterable[str]) -> pd.DataFrame:
    """A row a document of ceilings: dataset, loader, status, when it was finished and on what machine."""
    read = [
        found
        for name in experiments
        for found in read_documents(paths, name, record.read_ceilings)[0].values()
    ]
    rows = [
        {
            **{name: found["cell"][name] for name in ("dataset", "loader")},
            **{name: found[name] for name in ("status", "finished_at")},
            **machine_of(found["cell"], found["resolved"], found["environment"]),
            "warmup": WARM_UP if found["status"] == "done" else None,
        }
        for found in read
    ]
    return pd.DataFrame(rows, columns=None if rows else ["dataset", "loader", "status", "finished_at"])


def section(paths: Iterable[str | Path], experiment: str, planned: Sequence[str]) -> dict | None:
    """What the template shows of the ceilings of an experiment's cells; None if it neither has nor plans any.

    paths: documents of all experiments, <experiment>/<cell>.json. planned: ids of the cells whose ceilings
    are to be measured.
    """
    read, troubles = read_documents(paths, experiment, record.read_ceilings)
    if not (read or troubles or planned):
        return None
    there = {*read, *(trouble["who"] for trouble in troubles)}
    measurements = list(read.values())
    for cell, found in read.items():
        if found["status"] != "done":
            troubles.append({"status": found["status"], "who": cell, "sentence": found["sentence"]})
    grouped, pictures = groups(measurements), []
    if grouped:
        pictures = [
            style.picture(figure.draw(measurements), f"{experiment}-{name}", figure.CAPTION)
            for name, figure in (("ceilings", ceilings_figure), ("au", speed_utilization_figure))
        ]
    return {
        "tasks": [task(title, rows) for title, rows in grouped.items()],
        "pictures": pictures,
        "downloads": downloads.links(f"{experiment}-ceilings", table(measurements)),
        "troubles": troubles,
        "missing": [cell for cell in planned if cell not in there],
    }


def task(title: str, rows: Sequence[tuple[str, Mapping]]) -> dict:
    """Table and headline of one task. rows: as `groups` gives them, the highest AU first.

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
        "calls": calls(rows),
    }


def markdown(lines: Sequence[Mapping]) -> str:
    """The table of a task for a pull request."""
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


def calls(rows: Sequence[tuple[str, Mapping]]) -> list[tuple[str, str]]:
    """(name, call that makes its loader in one's own code) of each row whose loader this version knows."""
    found = []
    for name, one in rows:
        cell = {"devices": 1, "nodes": 1, **one["cell"], "device": one["resolved"]["device"]}
        cell["hyper"] = json.dumps(cell["hyper"])
        found.append((name, loader_call.text(cell, one["dataset"].get("cache"))))
    return [(name, text) for name, text in found if text is not None]


def how(rows: Sequence[tuple[str, Mapping]]) -> str:
    """How the numbers of a table were taken."""
    pairs = sorted({len(found["pairs"]) for _, found in rows})
    epochs = sorted({found["segment"]["epochs"] for _, found in rows})
    return (
        f"{wording.listing(pairs)} pairs of segments of {wording.listing(epochs)} "
        f"{'epoch' if epochs == [1] else 'epochs'} each, in the order ABBA in one process, through one step; "
        "input only and the loader's stages in rounds after them."
    )


def line(name: str, found: Mapping) -> dict:
    """One row of the table, in words."""
    shares, told = found["shares"], ceilings_verdict.of(found)
    kind, _, evidence = told.sentence.partition(": ")
    return {
        "name": name,
        "kind": kind,
        "evidence": f"{evidence[:1].upper()}{evidence[1:]} {ceilings_verdict.input_sentence(found)}".rstrip(),
        "au": wording.tenths(shares["au"]["median"]),
        "au_interval": _interval(shares["au"]),
        "wait": wording.tenths(max(0.0, shares["wait"]["median"])),
        "growth": wording.tenths(max(0.0, shares["growth"]["median"])),
        "rates": [wording.count(found["images_per_s"][side]["median"]) for side in SIDES],
        "input": ceilings_verdict.input_mark(found),
        "stages": [stage(name, found["stages"][name]) for name in (DECODE, TRANSFER, FETCH)],
        "start": start(found["start_up"]),
    }


def _interval(share: Mapping) -> str:
    if share["ci95_low"] is None:
        return ""
    return wording.ends(share["ci95_low"], share["ci95_high"])


def stage(name: str, found: Mapping) -> str:
    """What a stage takes, or why that is not known."""
    if found["reason"]:
        return f"{name}: not measured. {found['reason']}"
    median, n = found["seconds"]["median"], found["seconds"]["n"]
    seconds = f"{wording.three_figures(max(0.0, median))} s an epoch of the loader alone"
    if unsettled(found):
        return f"{name}: not settled. {disagreement(found['seconds'])}"
    if not found["shown"]:
        told = seconds if median > 0 else "below zero"
        return f"{name}: not shown to take any time (in the median of {n} rounds {told})"
    seconds += f" (median of {n} rounds)"
    of = "an epoch with files that are not in the page cache" if name == FETCH else "the epoch"
    points = ceilings_verdict.points_of(found["points"])
    return (
        f"{name}: {seconds}; without it at most {ceilings_verdict.times(found['at_most'])}, {points} of {of}"
    )


def unsettled(found: Mapping) -> bool:
    """Whether a stage's rounds disagree: worth noting in the median, and nothing in one of them at least."""
    seconds = found["seconds"]
    noted = seconds["median"] >= ceilings_verdict.NOTED * found["end_to_end_s"]
    return not found["shown"] and noted and seconds["min"] <= 0


def disagreement(seconds: Mapping) -> str:
    """What rounds that disagree say; a document has their ends and their median."""
    median, most = (wording.three_figures(seconds[end]) for end in ("median", "max"))
    return (
        f"One or more of {seconds['n']} rounds say that it takes nothing or less, the median {median} s "
        f"an epoch of the loader alone, the longest {most} s"
    )


def start(found: Mapping[str, float]) -> str:
    """What comes before the steady epochs."""
    seconds = {name: wording.three_figures(value) for name, value in found.items()}
    return (
        f"set up in {seconds['setup_s']} s (the loader in {seconds['open_s']} s); first batch of all after "
        f"{seconds['first_batch_s']} s, first epoch {seconds['first_epoch_s']} s, steady epochs "
        f"{seconds['epoch_s']} s, of which {seconds['epoch_start_s']} s for their first batch"
    )


def publish(paths: Iterable[str | Path], out_table: str | Path, out_figure: str | Path) -> None:
    """Writes the table as CSV and the figure as SVG; a figure with nothing to show says so in a sentence."""
    measurements = [record.read_ceilings(path) for path in paths]
    write_whole(out_table, table(measurements).to_csv(index=False, lineterminator="\n"))
    write_whole(out_figure, style.to_svg(ceilings_figure.draw(measurements)))
