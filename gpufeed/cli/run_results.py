"""What `gpufeed run` prints of results: a line for each repeat that has ended, then the leaderboard."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpufeed.cli.run_config import EXPERIMENT
from gpufeed.core.cell_matrix import Plan
from gpufeed.core.plan_advice import measured
from gpufeed.core.repeats import again

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("", "loader", "images/s", "of the limit", "range", "n")


ADVICE = f"advice/{EXPERIMENT}.json"  # in a folder of results


@dataclass(frozen=True)
class Records:
    """The records of a run. advice: of which cells some are measured alone (core.plan_advice); or None."""

    plan: Plan
    results: Path
    advice: Mapping[str, Any] | None = None

    def of(self, cells: Iterable[str]) -> list[Path]:
        """Return those of some cells, block by block."""
        folder, repeats = self.results / "records" / EXPERIMENT, range(self.plan.repeats[EXPERIMENT])
        return [folder / cell / f"{repeat}.json" for repeat, cell in product(repeats, cells)]

    def planned(self) -> list[Path]:
        """Return those that are measured, as far as the advice is known."""
        if self.advice is None:
            return self.of(self.plan.cells[EXPERIMENT])
        return self.of(measured(self.plan, EXPERIMENT, self.advice["of"], self.results / ADVICE))


class Progress:
    """Prints a line for each probe and each record that is written from now on."""

    def __init__(self, records: Records):
        self.records = records
        probes = (
            records.results / f"probes/{EXPERIMENT}/{cell}.json" for cell in records.plan.cells[EXPERIMENT]
        )
        self.probes = set(probes if records.advice else ())
        self.left = {
            path: changed(path) for path in [*self.probes, *records.of(records.plan.cells[EXPERIMENT])]
        }
        planned = records.planned()
        if there := sum(self.left[path] is not None for path in planned):
            print(f"{there} of {len(planned)} repeats were measured before", flush=True)

    def __call__(self) -> None:
        for path, before in [*self.left.items()]:
            if changed(path) not in (None, before):
                del self.left[path]
                planned = self.records.planned()
                count = f"[{sum(map(Path.exists, planned))}/{len(planned)}]"
                print("probed" if path in self.probes else count, said(path), flush=True)


def changed(path: Path) -> int | None:
    """Return when a file was written; None if it is not there."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def said(path: Path) -> str:
    """Return what a record says of its repeat, or a probe of its cell, in a line."""
    record = json.loads(path.read_text(encoding="utf-8"))
    name = record["cell"]["loader"]
    if record["status"] == "done":
        rate = record.get("throughput", {}).get("images_per_s")
        return name if rate is None else f"{name}: {rate:,.0f} images/s"
    return f"{name} {record['status']}: {record['sentence']}"


def any_failed(records: Iterable[Path]) -> bool:
    """Return whether a repeat ended in an error; one that its node lacks something for is skipped."""
    return any(json.loads(path.read_text())["status"] == "failed" for path in records if path.exists())


def summary(known: Records) -> str:
    """Return the advice, the leaderboard, what was not measured and where the report is."""
    results, lines = known.results, []
    if there := [path for path in known.planned() if path.exists()]:
        cells = cells_of([*there, *filter(Path.exists, map(again, there))])
        lines = ["", *advice_lines(known, cells), *leaderboard(cells)]
    if (report := results / "report.html").exists():
        lines += ["", f"Report: {report.resolve().as_uri()}"]
    return "\n".join(lines)


def cells_of(records: Sequence[Path]) -> "pd.DataFrame":
    """Return the table of the cells that have records (report.tables.cells)."""
    from gpufeed.report import tables  # pandas
    from gpufeed.report.load_records import read_records

    return tables.cells(read_records(records))


def advice_lines(known: Records, cells: "pd.DataFrame") -> list[str]:
    """Return the advice of a run as sentences, with an empty line behind them; none without advice.

    cells: of `cells_of`, whose rates stand beside the predicted ones. A document that another run left in the
    folder is none of this one.
    """
    from gpufeed.report.sections import advice

    path = known.results / ADVICE
    if known.advice is None or not path.exists():
        return []
    if json.loads(path.read_text(encoding="utf-8"))["of"] != known.advice["of"]:
        return []
    return [*advice.said([path], EXPERIMENT, cells), ""]


def leaderboard(cells: "pd.DataFrame") -> list[str]:
    """Return the measured loaders, the fastest first, as the lines of a table; the limit is its last row.

    cells: of `cells_of`. Behind it a line for each cell without a finished repeat says why.
    """
    from gpufeed.report import tables, wording

    lines = []
    for rows in tables.tasks(cells):
        rows = rows.assign(label=wording.labels(rows), last=rows["loader"].map(tables.is_ceiling))
        table, rank = [COLUMNS], 0
        for _, row in rows.sort_values(["last", "images_per_s"], ascending=[True, False]).iterrows():
            rank += not row["last"]
            note = row["against_ceiling"]
            note = f" ({note})" if note not in ("", "below") else ""
            share = "the limit" if row["last"] else wording.percent(row["ceiling_share"]) + note
            low, high = (wording.count(row[f"images_per_s_{end}"]) for end in ("min", "max"))
            ends = f"{low} to {high}" if row["n_repeats"] > 1 else "-"
            name = "" if row["last"] else str(rank)
            rate, n = wording.count(row["images_per_s"]), str(row["n_repeats"])
            table.append((name, row["label"], rate, share, ends, n))
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines += [wording.task(rows), *(line_of(row, widths) for row in table)]
    rest = cells[~cells["status"].isin(["done", "partly"])]
    return [*lines, *(f"{row['loader']} {row['status']}: {row['sentence']}" for _, row in rest.iterrows())]


def line_of(row: Sequence[str], widths: Sequence[int]) -> str:
    """Return a row of the table: the loader from the left, all else from the right."""
    sides = [">", "<", *">>>>"]
    parts = [f"{text:{side}{width}}" for text, side, width in zip(row, sides, widths, strict=True)]
    return "  ".join(parts).rstrip()
