"""The part of the report on limits: each cell's verdict, the table, the figure, and what was not measured."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd
from markupsafe import Markup

from gpufeed.analysis import au_figure, ceilings_figure, style, wording
from gpufeed.analysis.ceilings_rows import LIMITS, SIDES, groups, limits, table
from gpufeed.analysis.documents import documents
from gpufeed.analysis.files import write_whole
from gpufeed.ceilings import record, verdict
from gpufeed.ceilings.plan import DECODE, FETCH, TRANSFER


def joined(cells: pd.DataFrame, paths: Iterable[str | Path], experiment: str) -> pd.DataFrame:
    """The table of an experiment's cells with LIMITS, empty where no ceilings were measured."""
    read, _ = documents(paths, experiment, record.read)
    found = limits(read.values())
    return cells.merge(found, on=[name for name in found.columns if name not in LIMITS], how="left")


def measured(paths: Iterable[str | Path], experiments: Iterable[str]) -> pd.DataFrame:
    """Dataset and loader of every cell that has a document of its ceilings."""
    read = [found for name in experiments for found in documents(paths, name, record.read)[0].values()]
    return pd.DataFrame([found["cell"] for found in read], columns=["dataset", "loader"])


def section(paths: Iterable[str | Path], experiment: str, planned: Sequence[str]) -> dict | None:
    """What the template shows of the ceilings of an experiment's cells; None if it neither has nor plans any.

    paths: documents of all experiments, <experiment>/<cell>.json. planned: ids of the cells whose ceilings
    are to be measured.
    """
    read, troubles = documents(paths, experiment, record.read)
    if not (read or troubles or planned):
        return None
    there = {*read, *(trouble["who"] for trouble in troubles)}
    measurements = list(read.values())
    for cell, found in read.items():
        if found["status"] != "done":
            troubles.append({"status": found["status"], "who": cell, "sentence": found["sentence"]})
    grouped, pictures = groups(measurements), []
    if grouped:
        for name, figure in (("ceilings", ceilings_figure), ("au", au_figure)):
            svg = style.to_svg(figure.draw(measurements))
            inline = style.inline_svg(svg, f"{experiment}-{name}", figure.CAPTION)
            pictures.append({"svg": Markup(inline), "caption": figure.CAPTION})
    return {
        "tasks": [task(title, rows) for title, rows in grouped.items()],
        "pictures": pictures,
        "troubles": troubles,
        "missing": [cell for cell in planned if cell not in there],
    }


def task(title: str, rows: Sequence[tuple[str, Mapping]]) -> dict:
    """Table and headline of one task. rows: as `groups` gives them, the highest AU first.

    headline: the answer of an experiment whose ceilings are there before its repeats.
    """
    lines = [line(name, found) for name, found in rows]
    first, of_several = lines[0], f"the highest AU of {len(lines)} pipelines; " if len(lines) > 1 else ""
    headline = f"{first['name']}: {of_several}{first['kind']}. {first['evidence']}"
    return {"title": title, "how": how(rows), "rows": lines, "headline": headline}


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
    shares, told = found["shares"], verdict.of(found)
    kind, _, evidence = told.sentence.partition(": ")
    return {
        "name": name,
        "kind": kind,
        "evidence": f"{evidence[:1].upper()}{evidence[1:]}",
        "au": wording.tenths(shares["au"]["median"]),
        "au_interval": _interval(shares["au"]),
        "wait": wording.tenths(max(0.0, shares["wait"]["median"])),
        "growth": wording.tenths(max(0.0, shares["growth"]["median"])),
        "rates": [wording.count(found["images_per_s"][side]["median"]) for side in SIDES],
        "stages": [stage(name, found["stages"][name]) for name in (DECODE, TRANSFER, FETCH)],
        "start": start(found["start_up"]),
    }


def _interval(share: Mapping) -> str:
    if share["ci95_low"] is None:
        return ""
    return f"{share['ci95_low'] * 100:.1f} to {share['ci95_high'] * 100:.1f}"


def stage(name: str, found: Mapping) -> str:
    """What a stage takes, or why that is not known."""
    if found["reason"]:
        return f"{name}: not measured. {found['reason']}"
    seconds = f"{wording.three_figures(max(0.0, found['seconds']['median']))} s an epoch of the loader alone"
    seconds += f" (median of {found['seconds']['n']} rounds)"
    if not found["shown"]:
        return f"{name}: not shown to take anything but {seconds}"
    of = "an epoch with files that are not in the page cache" if name == FETCH else "the epoch"
    points = verdict.points_of(found["points"])
    return f"{name}: {seconds}; without it at most {verdict.times(found['at_most'])}, {points} of {of}"


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
    paths = list(paths)
    write_whole(out_table, table(paths).to_csv(index=False, lineterminator="\n"))
    write_whole(out_figure, style.to_svg(ceilings_figure.draw([record.read(path) for path in paths])))
