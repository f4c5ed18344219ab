"""Whose ceilings an experiment measures, and how. Standard library only: read while planning."""

from collections.abc import Mapping
from typing import Any

from gpufeed.core.cell_matrix import Plan
from gpufeed.core.cells import Cell
from gpufeed.core.errors import GpufeedError

FETCH, DECODE, TRANSFER = "fetch", "decode", "transfer"  # stages of the wait
DEFAULTS = {"pairs": 20, "least_s": 3.0}


def settings(config: Mapping, experiment: str) -> dict[str, Any] | None:
    """How the ceilings of an experiment are measured, with all defaults; None if it measures none."""
    block = config["experiments"][experiment].get("ceilings")
    if block is None:
        return None
    return {**DEFAULTS, **{key: block[key] for key in DEFAULTS if key in block}}


def cells(config: Mapping, plan: Plan, experiment: str) -> list[str]:
    """Ids of the cells whose ceilings are measured: those of the blocks in `ceilings`, without `replay`.

    Raises GpufeedError as Plan.cells_for, and for a cell that no prepared step can be had of.
    """
    found = plan.cells_for(config, experiment, "ceilings")
    for cell in found:
        if reason := refused(plan.cells[experiment][cell]):
            raise GpufeedError(
                f"cell {cell} of the blocks in experiments.{experiment}.ceilings.blocks: {reason}",
                "cells with the trainer plain on one device",
                "name another block, or give these cells a block of their own",
            )
    return found


def refused(cell: Cell) -> str | None:
    """Why the ceilings of a cell cannot be measured, as a sentence; None if they can."""
    if cell.trainer != "plain":
        return f"the trainer {cell.trainer} has no step of its own that another loader could feed"
    if cell.ranks > 1:
        return f"a cell on {cell.ranks} devices has as many processes, and segments alternate in one"
    return None
