"""Whose ceilings an experiment measures, and how. Standard library only: read while planning."""

from collections.abc import Mapping
from typing import Any

from gpufeed.core.cells import Cell, Plan
from gpufeed.core.errors import GpufeedError, require_known
from gpufeed.core.registry import LOADERS

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

    A block whose cells are all impossible under this config has none. Raises GpufeedError for a block that
    there is not, for one of nothing but `replay`, and for a cell that no prepared step can be had of.
    """
    blocks = config["experiments"][experiment].get("ceilings", {}).get("blocks", [])
    where, found = f"experiments.{experiment}.ceilings.blocks", []
    for block in blocks:
        require_known("block", block, plan.blocks[experiment], where)
        of_block = {cell: plan.cells[experiment][cell] for cell in plan.blocks[experiment][block]}
        ours = {name: cell for name, cell in of_block.items() if not LOADERS[cell.loader].ceiling}
        if of_block and not ours:
            raise GpufeedError(
                f"block {block!r} in {where}, which has no cell but ceilings",
                "a block with a cell that loads something",
                "name another block",
            )
        for cell in ours.values():
            if reason := refused(cell):
                raise GpufeedError(
                    f"block {block!r} in {where}: {reason}",
                    "cells with the trainer plain on one device",
                    "name another block, or give these cells a block of their own",
                )
        found += ours
    return list(dict.fromkeys(found))


def refused(cell: Cell) -> str | None:
    """Why the ceilings of a cell cannot be measured, as a sentence; None if they can."""
    if cell.trainer != "plain":
        return f"the trainer {cell.trainer} has no step of its own that another loader could feed"
    if cell.ranks > 1:
        return f"a cell on {cell.ranks} devices has as many processes, and segments alternate in one"
    return None
