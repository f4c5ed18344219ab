"""What a run prints behind its last job: the leaderboard, the answer, the advice and where the page is."""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpufeed.cli.run_config import EXPERIMENT
from gpufeed.core.cell_matrix import Plan
from gpufeed.core.errors import GpufeedError, one_line
from gpufeed.core.plan_advice import measured
from gpufeed.core.record import ADVICE
from gpufeed.core.repeats import again

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("", "loader", "images/s", "of the limit", "range", "n")
RIGHT = (0, 2, 3, 4, 5)  # of them end together
MOST = 12  # rows of a leaderboard


def planned(plan: Plan, results: Path, advice: Mapping[str, Any] | None) -> list[Path]:
    """Return the records of `gpufeed run`, as far as its advice (core.plan_advice) is known."""
    cells: Iterable[str] = plan.cells[EXPERIMENT]
    if advice is not None:
        cells = measured(plan, EXPERIMENT, advice["of"], results / f"advice/{EXPERIMENT}.json")
    folder, repeats = results / "records" / EXPERIMENT, range(plan.repeats[EXPERIMENT])
    return [folder / cell / f"{repeat}.json" for repeat, cell in product(repeats, cells)]


def any_failed(records: Iterable[Path]) -> bool:
    """Return whether a record is of an error or damaged; of what its node lacks, a repeat is skipped."""
    there = [path for path in records if path.exists()]
    try:
        return any(json.loads(path.read_text())["status"] == "failed" for path in there)
    except (ValueError, KeyError, TypeError):
        return True


def ending(
    results: str,
    records: Mapping[str, Iterable[str]],
    advised: Mapping[str, Mapping[str, Any] | None],
    options: Sequence[str] = (),
) -> list[str]:
    """Return the lines that end a run: all of one experiment, the answer alone of each of several.

    records: experiment -> those that it plans. advised: experiment -> its settings of `advice`, or None.
    options: of the command that starts the run again (core.rerun_options).
    """
    there = {name: existing(paths) for name, paths in records.items()}
    there = {name: paths for name, paths in there.items() if paths}
    if not there:
        return []
    try:
        tables = {name: cells_of(paths) for name, paths in there.items()}
        said = (answers(tables, results, advised), damaged(tables.values()))
        lines = [*chain.from_iterable(said), *once_more(tables, results, options)]
    except Exception as error:  # jobs may have environments of their own; a run that succeeded stays one
        lines = [f"No leaderboard here: {one_line(error)}"]
    return ["", *lines, *page(results, there)]


def answers(
    tables: Mapping[str, "pd.DataFrame"], results: str, advised: Mapping[str, Mapping[str, Any] | None]
) -> list[str]:
    """Return what the tables of the cells of each experiment say. results, advised: as in `ending`."""
    if len(tables) > 1:
        wide = max(map(len, tables))
        return [f"{name:{wide}}  {lead}" for name, cells in tables.items() for lead in leads(cells)]
    ((name, cells),) = tables.items()
    said = [*leaderboard(cells), *unmeasured(cells), *leads(cells, "Answer: ")]
    return [*said, *advice_lines(results, name, advised[name], cells)]


def damaged(tables: Iterable["pd.DataFrame"]) -> list[str]:
    """Return the reason of each file that is no record and is therefore left out."""
    cells = [cell for table in tables for cell in table[table["status"] == "unusable"]["sentence"]]
    return [f"Left out: {sentence}." for sentence in cells[:MOST]]


def once_more(tables: Mapping[str, "pd.DataFrame"], results: str, options: Sequence[str]) -> list[str]:
    """Return how to measure experiments again that were disturbed, and by what; none where all was quiet.

    Nothing measures them again by itself. All repeats are, since only those of one time compare.
    """
    causes = {name: found for name, cells in tables.items() if (found := causes_of(cells))}
    if not causes:
        return []
    command = " ".join(["snakemake", *causes, *options, "--forcerun measure_cell"])
    places = " and ".join(f"{results}/records/{name}" for name in causes)
    return [
        *dict.fromkeys(chain(*causes.values())),
        f"On a quiet machine this measures all repeats again and replaces their records in {places}:",
        f"  {command}",
    ]


def causes_of(cells: "pd.DataFrame") -> list[str]:
    """Return the reasons to measure the cells of a table again, as sentences (see report.verdicts)."""
    from gpufeed.system.statistics import BUSY

    against = {*cells["against_ceiling"]}
    found = {
        "Other processes used the cores meanwhile.": cells["disturbed"].any(),
        "A rate is far above its limit: one of the two was disturbed, or measured elsewhere.": "disturbed"
        in against,
        "Repeats are too far apart to tell a rate from its limit.": BUSY in against,
    }
    return [cause for cause, holds in found.items() if holds]


def existing(records: Iterable[str]) -> list[Path]:
    """Return the records that are there, with the second ones of disturbed repeats."""
    paths = [Path(path) for path in records]
    return [path for path in (*paths, *map(again, paths)) if path.exists()]


def page(results: str, records: Mapping[str, Sequence[Path]]) -> list[str]:
    """Return the address of the newest page about these experiments, or how to have one."""
    pages = [Path(results) / f"report{end}.html" for end in ("", *(f"-{name}" for name in records))]
    changed = {path: path.stat().st_mtime for path in pages if path.exists()}
    newest = max(path.stat().st_mtime for paths in records.values() for path in paths)
    if not changed or max(changed.values()) < newest:
        return ["`snakemake report` writes the report of what was measured."]
    return [f"Report: {max(changed, key=changed.__getitem__).resolve().as_uri()}"]


def cells_of(records: Sequence[Path]) -> "pd.DataFrame":
    """Return the table of the cells that have records (report.tables.cells)."""
    from gpufeed.report import tables  # pandas
    from gpufeed.report.load_records import read_records

    return tables.cells(read_records(records))


def leads(cells: "pd.DataFrame", before: str = "") -> list[str]:
    """Return the answer of an experiment in a line, one for each machine."""
    from gpufeed.report import verdicts

    return [f"{before}{found.lead}." for found in verdicts.answers(cells) if found.headline and found.lead]


def advice_lines(
    results: str, experiment: str, asked: Mapping[str, Any] | None, cells: "pd.DataFrame"
) -> list[str]:
    """Return the advice on an experiment as sentences; none without advice.

    asked: its settings. cells: of `cells_of`, whose rates stand beside the predicted ones. A document that
    another run left in the folder is none of this one.
    """
    from gpufeed.report.sections import advice

    path = Path(results) / f"advice/{experiment}.json"
    if asked is None or not path.exists():
        return []
    try:
        ours = ADVICE.read(path)["of"] == asked["of"]
    except GpufeedError as error:
        return [f"The advice is left out. {one_line(error)}"]
    return list(advice.said([path], experiment, cells)) if ours else []


def leaderboard(cells: "pd.DataFrame") -> list[str]:
    """Return the measured loaders, the fastest first, as the lines of a table; the limit is its last row.

    cells: of `cells_of`. Of several tasks it is that of the answer, of many loaders the first MOST.
    """
    from gpufeed.report import tables, verdicts, wording

    lines, groups = [], [rows for rows in tables.tasks(cells) if len(tables.pipelines(rows))]
    for number in sorted(verdicts.headlines(groups)):
        rows = tables.ranked(groups[number])
        table, rank = [COLUMNS], 0
        for _, row in rows.iterrows():
            rank += not row["bound"]
            if rank > MOST and not row["bound"]:
                continue
            note = row["against_ceiling"]
            note = f" ({note})" if note not in ("", "below") else ""
            share = "the limit" if row["bound"] else wording.percent(row["ceiling_share"]) + note
            low, high = (wording.count(row[f"images_per_s_{end}"]) for end in ("min", "max"))
            ends = f"{low} to {high}" if row["n_repeats"] > 1 else "-"
            name = "" if row["bound"] else str(rank)
            rate, n = wording.count(row["images_per_s"]), str(row["n_repeats"])
            table.append((name, row["label"], rate, share, ends, n))
        lines += [wording.task(rows), *wording.in_columns(table, RIGHT)]
        rest = [(max(0, rank - MOST), "more pipeline"), (len(groups) - 1, "more task")]
        more = [wording.plural(count, noun) for count, noun in rest if count]
        lines += [f"The report has {' and '.join(more)}."] if more else []
    return lines


def unmeasured(cells: "pd.DataFrame") -> list[str]:
    """Return a line with the loaders that have no finished repeat; none where all have one."""
    from gpufeed.report import wording

    done = cells[cells["status"].isin(["done", "partly"])]
    rest = cells[cells["loader"].notna() & ~cells["loader"].isin(done["loader"])]
    said = [
        f"{wording.listing(sorted({*own['loader']}))} ({status})" for status, own in rest.groupby("status")
    ]
    return [f"Not measured: {'; '.join(said)}. The report says why."] if said else []
