"""The part of the report that says what to change, with predicted rates beside measured ones."""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from gpufeed.advice.ranking import read_advice
from gpufeed.advice.words import BOUNDS, lines
from gpufeed.report import downloads
from gpufeed.system.statistics import BUSY

PREDICTED = ["predicted_images_per_s", "predicted_images_per_s_low", "predicted_images_per_s_high"]


def joined(cells: pd.DataFrame, paths: Iterable[str | Path], experiment: str) -> pd.DataFrame:
    """Return the table of an experiment's cells with PREDICTED; unchanged without advice."""
    found = read_advice(paths, experiment)
    if found is None:
        return cells
    rows = [
        (one["cell_id"], *(one["images_per_s"][end] for end in ("median", "low", "high")))
        for one in found["candidates"]
        if one["images_per_s"] is not None
    ]
    return cells.merge(pd.DataFrame(rows, columns=["cell_id", *PREDICTED]), on="cell_id", how="left")


def section(paths: Iterable[str | Path], experiment: str, cells: pd.DataFrame) -> dict | None:
    """Return what the template shows of an experiment's advice; None without. cells: of `tables.cells`."""
    found = read_advice(paths, experiment)
    if found is None:
        return None
    measured = rates(cells)
    shown = [one for one in found["candidates"] if one["images_per_s"] is not None]
    rows = [one | {"bound": BOUNDS[one["bound"]], "measured": measured.get(one["cell_id"])} for one in shown]
    answer, *rest = lines(found, measured)
    return {
        "headline": " ".join([answer, *rest[:1], *doubt(found, cells)]),
        "lines": rest[1:],
        "rows": rows,
        "downloads": files(shown, measured, experiment),
    }


def said(paths: Iterable[str | Path], experiment: str, cells: pd.DataFrame) -> list[str]:
    """Return an experiment's advice as lines for a terminal; none without. cells: as in `section`."""
    found = read_advice(paths, experiment)
    if found is None:
        return []
    ours = cells[cells["experiment"] == experiment]
    return [*lines(found, rates(ours)), *doubt(found, ours)]


def doubt(found: dict, cells: pd.DataFrame) -> list[str]:
    """Say so if the machine was too busy for the rates that the advice compares."""
    compared = {found["of"], *(one["cell_id"] for one in found["candidates"] if one["chosen"])}
    verdicts = cells.loc[cells["cell_id"].isin(compared), "against_ceiling"]
    if verdicts.isin([BUSY, "disturbed"]).any():
        return ["The machine was too busy to be sure of this: measure again on a quiet one."]
    return []


def rates(cells: pd.DataFrame) -> dict[str, float]:
    """Return cell -> measured images a second, the median over machines."""
    timed = cells[cells["images_per_s"].notna()]
    return timed.groupby("cell_id")["images_per_s"].median().to_dict()


def files(candidates: list[dict], measured: dict[str, float], experiment: str) -> list:
    """Return the table as files to download."""
    rows = [
        {
            **{name: one[name] for name in ("cell_id", "change", "rank", "bound", "chosen", "advised")},
            **{f"predicted_{end}": one["images_per_s"][end] for end in ("low", "median", "high")},
            "measured_images_per_s": measured.get(one["cell_id"]),
        }
        for one in candidates
    ]
    return downloads.links(f"{experiment}-advice", pd.DataFrame(rows))
