"""What the workflow's scripts call: records in, finished files out, each whole or not there."""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpufeed.analysis import figures, page, records, style, tables
from gpufeed.analysis.files import write_whole

logger = logging.getLogger("gpufeed")
Paths = Iterable[str | Path]


def tabulate(record_paths: Paths, steps_paths: Paths, out_cells: str | Path, out_batches: str | Path) -> None:
    """Writes the table of cells and the table batch by batch as CSV (columns: see `tables`)."""
    table = _read(record_paths)
    steps, damaged = records.read_steps(steps_paths)
    for sentence in damaged:
        logger.warning(sentence)
    write_whole(out_cells, tables.cells(table, steps).to_csv(index=False, lineterminator="\n"))
    write_whole(out_batches, tables.batches(table, steps).to_csv(index=False, lineterminator="\n"))


def plot(
    record_paths: Paths,
    steps_paths: Paths,
    out_throughput: str | Path,
    out_breakdown: str | Path,
    out_workers: str | Path,
) -> None:
    """Writes the three figures of an experiment as SVG; one with nothing to show says so in a sentence."""
    steps, damaged = records.read_steps(steps_paths)
    for sentence in damaged:
        logger.warning(sentence)
    cells = tables.cells(_read(record_paths), steps)
    for path, draw in (
        (out_throughput, figures.throughput),
        (out_breakdown, figures.breakdown),
        (out_workers, figures.workers),
    ):
        write_whole(path, style.to_svg(draw(cells)))


def assemble(found: records.Found, plan_info: Mapping, out_html: str | Path) -> None:
    """Writes the report on `found` (plan_info: see `page.page`)."""
    write_whole(out_html, page.page(found, plan_info))


def report(
    results: str | Path, experiments: Iterable[str], plan_info: Mapping, out_html: str | Path
) -> records.Found:
    """Writes the report from own records, from published ones if there are none; measures nothing."""
    experiments = list(experiments)
    planned = {
        name: dict.fromkeys(plan["cells"], plan["repeats"]) for name, plan in plan_info["experiments"].items()
    }
    found = records.find_records(results, experiments, planned)
    if not found.paths:
        reference = records.find_reference(results, experiments, planned)
        found = reference if reference.paths else found
    assemble(found, plan_info, out_html)
    logger.info("wrote %s from %d records, %d missing", out_html, len(found.paths), len(found.missing))
    return found


def say_missing(found: records.Found, plan_info: Mapping) -> str:
    """What is missing, a line an experiment, with the command that measures it; empty if nothing is."""
    lines = []
    for name in plan_info["experiments"]:
        ours = [missing for missing in found.missing if missing.experiment == name]
        if ours:
            cells = len({missing.cell_id for missing in ours})
            planned = len(plan_info["experiments"][name]["cells"])
            lines.append(
                f"missing: {name}: {len(ours)} repeats of {cells} of its {planned} cells"
                f" (measure them: {page.command(plan_info, name)})"
            )
    return "\n".join(lines)


def _read(record_paths: Paths):
    table = records.read_records(record_paths)
    for sentence in table.loc[table["status"] == "damaged", "sentence"]:
        logger.warning(sentence)
    return table
