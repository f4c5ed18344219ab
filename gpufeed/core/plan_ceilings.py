"""Which ceilings an experiment measures, and how. Used while planning."""

from collections.abc import Mapping
from typing import Any

from gpufeed.core.cell_matrix import Plan
from gpufeed.core.cells import Cell
from gpufeed.core.config_sources import with_defaults
from gpufeed.core.errors import GpufeedError

FETCH, DECODE, TRANSFER = "fetch", "decode", "transfer"  # stages of the input


def settings(config: Mapping, experiment: str) -> dict[str, Any] | None:
    """Return how the ceilings of an experiment are measured, with defaults; None without `ceilings`."""
    block = config["experiments"][experiment].get("ceilings")
    if block is None:
        return None
    return {key: value for key, value in with_defaults("ceilings", block).items() if key != "blocks"}


def cells(config: Mapping, plan: Plan, experiment: str) -> list[str]:
    """Return the ids of the cells whose ceilings are measured: those of the named blocks, without `replay`.

    Raises GpufeedError as Plan.cells_for, and for a cell whose ceilings cannot be measured.
    """
    found = plan.cells_for(config, experiment, "ceilings")
    for cell in found:
        if reason := refused(plan.cells[experiment][cell]):
            raise GpufeedError(
                f"cell {cell} of the blocks in experiments.{experiment}.ceilings.blocks: {reason}",
                "cells with trainer plain on one device",
                "name another block, or give these cells a block of their own",
            )
    return found


def refused(cell: Cell) -> str | None:
    """Return why the ceilings of a cell cannot be measured, as a sentence; None if they can."""
    if cell.trainer != "plain":
        return f"trainer {cell.trainer} has no separate step that another loader could feed"
    if cell.ranks > 1:
        return f"it trains on {cell.ranks} devices in as many processes, and segments need one process"
    return None
