"""Write the report's files from records, each whole or not there: what the workflow's scripts call."""

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import write_whole
from gpufeed.report import figures, find_results, load_records, page, style, tables, wording
from gpufeed.report.sections import advice, timeline
from gpufeed.report.sections import side_by_side as both

logger = logging.getLogger("gpufeed")
Paths = Iterable[str | Path]
SHOWN = 3  # files that a message names


def tabulate(
    record_paths: Paths, out_cells: str | Path, out_batches: str | Path, advice_paths: Paths = ()
) -> None:
    """Writes the table of cells and the table batch by batch as CSV (columns: see `tables`).

    advice_paths: of the experiment's advice, whose predicted rates the cells have then.
    """
    table, steps = _read(record_paths)
    cells = tables.cells(table, steps)[tables.CELL_COLUMNS]
    for path in advice_paths:
        cells = advice.joined(cells, [path], Path(path).stem)
    write_whole(out_cells, cells.to_csv(index=False, lineterminator="\n"))
    write_whole(out_batches, tables.batches(table, steps).to_csv(index=False, lineterminator="\n"))


def plot(
    record_paths: Paths,
    out_throughput: str | Path,
    out_breakdown: str | Path,
    out_workers: str | Path,
    out_timeline: str | Path,
) -> None:
    """Writes the four figures of an experiment as SVG; one with nothing to show says so in a sentence."""
    table, steps = _read(record_paths)
    cells = tables.cells(table, steps)
    for path, draw in (
        (out_throughput, figures.throughput),
        (out_breakdown, figures.breakdown),
        (out_workers, figures.workers),
    ):
        write_whole(path, style.to_svg(draw(cells)))
    write_whole(out_timeline, style.to_svg(timeline.figure(cells, table, steps)))


def side_by_side(
    record_paths: Paths,
    pair: Mapping[str, str],
    out_table: str | Path,
    out_phases: str | Path,
    out_totals: str | Path,
) -> list[str]:
    """Write table and figures of two pipelines; return the comparison. pair: as side_by_side.means."""
    return both.publish(*_read(record_paths), pair, out_table, out_phases, out_totals)


def assemble(found: find_results.Found, plan_info: Mapping, out_html: str | Path) -> None:
    """Writes the report on `found` (plan_info: see `page.page`)."""
    write_whole(out_html, page.page(found, plan_info))


def report(
    results: str | Path, experiments: Iterable[str], plan_info: Mapping, out_html: str | Path
) -> find_results.Found:
    """Writes the report from own results, from published ones if there are none; measures nothing."""
    experiments, plans = list(experiments), plan_info["experiments"]
    found = find_results.find_own(results, experiments, plans)
    if not found.measured:
        reference = find_results.find_reference(results, experiments, plans)
        found = reference if reference.measured else found
    assemble(found, plan_info, out_html)
    if found.advice:
        cells = tables.cells(load_records.read_records(found.paths))
        for name in experiments:
            for line in advice.said(found.advice, name, cells):
                print(line, flush=True)
    records_n, said = len(found.paths), find_results.told(found.missing)
    logger.info("wrote %s from %d records; missing: %s", out_html, records_n, said)
    return found


def say_missing(found: find_results.Found, plan_info: Mapping) -> str:
    """What is missing, a line an experiment, with the command that measures it; empty if nothing is."""
    lines = []
    for name in plan_info["experiments"]:
        ours = [part for part in found.missing if part.experiment == name]
        if ours:
            command = page.command(plan_info, name)
            lines.append(f"missing: {name}: {find_results.told(ours)} (measure them: {command})")
    return "\n".join(lines)


def refuse_changed(folder: str | Path) -> None:
    """Raises GpufeedError where documents below a folder, to be published, are not of a commit as it is.

    Documents without a machine are of earlier versions, when a copy without .git did not know its changes:
    these documents stay, and every table says that their changes are unknown.
    """
    wrong = []
    for path in sorted(Path(folder).rglob("*.json")):
        try:
            found = json.loads(path.read_text())
        except ValueError:
            wrong.append(f"{path} (no JSON)")
            continue
        made_by = found.get("environment") if isinstance(found, dict) else None
        if isinstance(made_by, dict) and "machine" in made_by:
            commit, dirty = made_by.get("commit"), made_by.get("dirty")
            if commit is None or dirty is not False:
                wrong.append(f"{path} ({wording.commit(commit, dirty)})")
    if wrong:
        more = f", and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise GpufeedError(
            f"{len(wrong)} of {folder} measured by code that is no commit: {', '.join(wrong[:SHOWN])}{more}",
            "documents of a commit without changes, which others can measure again",
            "commit, run python -m gpufeed.cluster.bundle.code before the code goes to a node without git, "
            f"and measure them again; until then keep them out of {folder}",
        )


def _read(record_paths: Paths):
    """(records, step tables beside them); what cannot be read is told in the log."""
    paths = list(record_paths)
    table = load_records.read_records(paths)
    steps, damaged = load_records.read_steps(map(find_results.steps_beside, paths))
    for sentence in (*table.loc[table["status"] == "damaged", "sentence"], *damaged):
        logger.warning(sentence)
    return table, steps


def for_job(job: Any) -> None:
    """Do the work of rule report, a gpufeed.job.Job: the page, then where it is and what it lacks."""
    asked = job.params
    found = report(asked.results, asked.experiments, asked.plan, asked.report)
    print(f"report: {Path(asked.report).resolve()}")
    if lacking := say_missing(found, asked.plan):
        print(lacking)
