"""Write the report's files from records, each whole or not there: what the workflow's scripts call."""

import fcntl
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from gpufeed.core import record
from gpufeed.core.errors import GpufeedError, one_line
from gpufeed.core.file_writes import whole, write_whole
from gpufeed.report import (
    comparison,
    comparison_text,
    figures,
    find_results,
    load_records,
    page,
    style,
    tables,
)
from gpufeed.report.sections import (
    advice,
    ceilings,
    ceilings_rows,
    confusion,
    decoding,
    decoding_tables,
    inference,
    side_by_side,
    timeline,
)

logger = logging.getLogger("gpufeed")
Paths = Iterable[str | Path]
OTHERS = re.compile(r"<!-- pages -->(?:<nav.*?</nav>)?", re.DOTALL)  # where a page links to the others
TITLE = re.compile("<title>(.*?) · ")


def write(made: Iterable[pd.DataFrame | Figure], outs: Paths) -> None:
    """Write each table as CSV and each figure as SVG; a figure with nothing to show says so in a sentence."""
    for one, out in zip(made, outs, strict=True):
        table = isinstance(one, pd.DataFrame)
        write_whole(out, one.to_csv(index=False, lineterminator="\n") if table else style.to_svg(one))


def tabulate(
    record_paths: Paths, out_cells: str | Path, out_batches: str | Path, advice_paths: Paths = ()
) -> None:
    """Write the table of cells and the table of batches (columns: see `tables`).

    advice_paths: of the experiment's advice, whose predicted rates the cells have then.
    """
    table, steps = _read(record_paths)
    cells = tables.cells(table, steps)[tables.CELL_COLUMNS]
    for path in advice_paths:
        cells = advice.joined(cells, [path], Path(path).stem)
    write((cells, tables.batches(table, steps)), (out_cells, out_batches))


def plot(record_paths: Paths, *outs: str | Path) -> None:
    """Write the four figures of an experiment: throughput, breakdown, workers, timeline."""
    table, steps = _read(record_paths)
    cells = tables.cells(table, steps)
    drawn = [draw(cells) for draw in (figures.throughput, figures.breakdown, figures.workers)]
    write([*drawn, timeline.figure(cells, table, steps)], outs)


def plot_side_by_side(record_paths: Paths, pair: Mapping[str, str], *outs: str | Path) -> list[str]:
    """Write the means of two pipelines and the figures of phases and totals; return the comparison.

    pair: as side_by_side.means.
    """
    table = side_by_side.means(*_read(record_paths), pair)
    machines = [side_by_side.medians(rows) for rows in side_by_side.machines(table)]
    write([table, *(draw(machines) for draw in side_by_side.BOTH)], outs)
    return side_by_side.lines(table)


def tabulate_sweep(paths: Paths, out: str | Path) -> None:
    """Write the table of decoders (decoding_tables.COLUMNS)."""
    points, troubles = decoding_tables.read_sweeps(paths)
    for trouble in troubles.itertuples():
        logger.warning("%s %s: %s", trouble.decoder, trouble.status, trouble.sentence)
    write([points], [out])


def plot_sweep(paths: Paths, *outs: str | Path) -> None:
    """Write the figures of decoders: crossover and decoding."""
    points, _ = decoding_tables.read_sweeps(paths)
    write((decoding.draw_crossover(points), decoding.draw_decoding(points)), outs)


def plot_ceilings(paths: Paths, *outs: str | Path) -> None:
    """Write the table and the figure of ceilings."""
    found = _usable(record.CEILINGS.read, paths)
    write((ceilings_rows.table(found), ceilings.draw_epochs(found)), outs)


def plot_inference(paths: Paths, *outs: str | Path) -> None:
    """Write the table and the figure of models in use."""
    found = _usable(record.INFERENCE.read, paths)
    write((inference.table(found), inference.draw(found)), outs)


def plot_confusion(path: str | Path, out: str | Path) -> None:
    """Write the figure of one evaluation; without a matrix it says why in a sentence."""
    drawn = [confusion.draw(found) for found in _usable(confusion.read, [path])]
    write(drawn or [style.sentence_figure("Nothing to draw: the evaluation cannot be used.")], [out])


def compare(
    records: Paths, baseline: Paths, names: tuple[str, str], out_csv: str | Path, out_markdown: str | Path
) -> None:
    """Write the comparison of two sets of records: its rows (`comparison.COLUMNS`), and its text.

    A regression or a refused cell is no error here; `python -m gpufeed.compare` has exit codes for them.
    """
    sides = (load_records.read_records(paths) for paths in (records, baseline))
    found = comparison.compare(*sides, names)
    logger.info(comparison_text.conclusion(found))
    write([found.rows], [out_csv])
    write_whole(out_markdown, comparison_text.markdown(found))


def report(
    results: str | Path, experiments: Iterable[str], plan_info: Mapping, out_html: str | Path
) -> find_results.Found:
    """Write the report from own results, or from published ones without own ones; measure nothing."""
    experiments, plans = list(experiments), plan_info["experiments"]
    found = find_results.find_own(results, experiments, plans)
    if not found.measured:
        reference = find_results.find_reference(results, experiments, plans)
        found = reference if reference.measured else found
    folder = Path(out_html).parent
    html = page.page(found, plan_info, folder)
    with alone_in(folder) as alone:
        write_pages(Path(out_html), html, ["report.html", *(f"report-{name}.html" for name in plans)], alone)
    records_n, said = len(found.paths), find_results.in_words(found.missing)
    logger.info("wrote %s from %d records; missing: %s", out_html, records_n, said)
    return found


@contextmanager
def alone_in(folder: Path) -> Iterator[bool]:
    """Wait until no other process writes pages into a folder; yield False if its filesystem has no locks."""
    folder.mkdir(parents=True, exist_ok=True)
    number = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(number)


def write_pages(out: Path, html: str, planned: Iterable[str], alone: bool) -> None:
    """Write a page and let it and the other pages of its folder lead to each other.

    planned: file names of the pages that the config makes. All others, such as copies and published pages,
    are neither changed nor linked. A changed page keeps its time, for it is as old as its results.
    alone: whether no other process writes here. Otherwise only `out` is written, lest a newer page be lost.
    """
    pages = {path: text for name in planned if (text := _page_at(path := out.with_name(name)))}
    pages = dict(sorted((pages | {out: html}).items()))
    titles = {path: TITLE.search(text)[1] for path, text in pages.items()}
    for path, text in pages.items():
        links = [
            f'<li><a href="{other.name}">{title}</a></li>' for other, title in titles.items() if other != path
        ]
        head = '<nav aria-label="Other pages"><details><summary>Other pages of these results</summary><ul>'
        nav = "".join([head, *links, "</ul></details></nav>"]) if links else ""
        linked = OTHERS.sub(lambda _, nav=nav: f"<!-- pages -->{nav}", text, count=1)
        if path == out:
            write_whole(path, linked)
        elif alone and linked != text:
            times = path.stat()
            with whole(path) as partial:
                partial.write_text(linked, encoding="utf-8")
                os.utime(partial, ns=(times.st_atime_ns, times.st_mtime_ns))


def _page_at(path: Path) -> str | None:
    """Return a page that can be linked; None for a file that is gone, unreadable or no page of ours."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return text if OTHERS.search(text) and TITLE.search(text) else None


def missing_lines(found: find_results.Found, plan_info: Mapping) -> str:
    """Return what is missing, a line an experiment with the command that measures it; empty if nothing is."""
    lines = []
    for name in plan_info["experiments"]:
        ours = [part for part in found.missing if part.experiment == name]
        if ours:
            command = page.command(plan_info, name)
            lines.append(f"missing: {name}: {find_results.in_words(ours)} (measure them: {command})")
    return "\n".join(lines)


def _usable(read: Callable[[str | Path], Any], paths: Paths) -> list:
    """Return the usable documents; the others are logged, and named on the page."""
    found = []
    for path in paths:
        try:
            found.append(read(path))
        except GpufeedError as error:
            logger.warning("left out: %s", one_line(error))
    return found


def _read(record_paths: Paths):
    """Return (records, step tables beside them); what cannot be read is logged."""
    paths = list(record_paths)
    table = load_records.read_records(paths)
    steps, damaged = load_records.read_steps(map(find_results.steps_beside, paths))
    for sentence in (*table.loc[table["status"] == "unusable", "sentence"], *damaged):
        logger.warning(sentence)
    return table, steps


def for_job(job: Any) -> None:
    """Do the work of rule report, a gpufeed.job.Job: the page, then where it is and what it lacks."""
    asked = job.params
    found = report(asked.results, asked.experiments, asked.plan, asked.report)
    print(f"report: {Path(asked.report).resolve()}")
    if lacking := missing_lines(found, asked.plan):
        print(lacking)
