"""The cells that an experiment with `advice` probes and measures. Used while planning."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpufeed.core.cell_matrix import Plan
from gpufeed.core.errors import GpufeedError, require_known
from gpufeed.core.plan_ceilings import refused
from gpufeed.core.registry import LOADERS

BEST = 3  # candidates to measure, by default
SAME = ("dataset", "recipe", "model", "trainer", "batch_size", "cores")  # equal in all candidates


def settings(config: Mapping, plan: Plan, experiment: str) -> dict[str, Any] | None:
    """Return {"of": a cell's id, "best": number} of an experiment; None without `advice`.

    Raises GpufeedError for an unknown block, and for a block that has not exactly one cell. Raises it too for
    a cell that cannot be probed, or that differs from the cell `of` in an axis of SAME.
    """
    asked = config["experiments"][experiment].get("advice")
    if asked is None:
        return None
    where, block = f"experiments.{experiment}.advice.of", asked["of"]
    require_known("block", block, plan.blocks[experiment], where)
    cells = plan.cells[experiment]
    ours = [cell for cell in plan.blocks[experiment][block] if not LOADERS[cells[cell].loader].ceiling]
    if len(ours) != 1:
        raise GpufeedError(
            f"block {block!r} in {where}, which has {len(ours)} possible cells",
            "a block with one cell beside replay, the limit: your present pipeline",
            "name another block, or give this cell a block of its own",
        )
    of = cells[ours[0]]
    for name in candidates(plan, experiment):
        reason = refused(cells[name])
        if cells[name].settings:
            reason = "its `settings` are tuned after the probes"
        if reason:
            raise GpufeedError(
                f"cell {name} in experiments.{experiment}, which has `advice`: {reason}",
                "cells with trainer plain on one device, and without `settings: tuned`",
                "move it to an experiment of its own",
            )
        if differ := [axis for axis in SAME if getattr(cells[name], axis) != getattr(of, axis)]:
            raise GpufeedError(
                f"cell {name} in experiments.{experiment}, whose {differ[0]} is not that of block {block!r}",
                f"the same {', '.join(SAME)} in all cells, so that they compare",
                "move it to an experiment of its own",
            )
    return {"of": ours[0], "best": asked.get("best", BEST)}


def candidates(plan: Plan, experiment: str) -> list[str]:
    """Return the cells that are probed: all but ceilings."""
    return [name for name, cell in plan.cells[experiment].items() if not LOADERS[cell.loader].ceiling]


def measured(plan: Plan, experiment: str, of: str, document: str | Path) -> list[str]:
    """Return the cells that are measured: `of`, ceilings, and those that the advice chose, if it exists."""
    chosen = {of}
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads(Path(document).read_text())["candidates"]
        chosen |= {candidate["cell_id"] for candidate in found if candidate["chosen"]}
    cells = plan.cells[experiment]
    return [name for name, cell in cells.items() if name in chosen or LOADERS[cell.loader].ceiling]
