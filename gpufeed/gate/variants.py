"""Which settings of a loader the gate judges, and what it said of those of one cell.

Standard library only: the workflow imports this while it plans.
"""

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from gpufeed.experiment import Cell

# The settings that a loader sees. Fields of Cell and of LoadRequest.
AXES = ("batch_size", "workers", "prefetch_factor", "persistent_workers", "pin_memory", "seed")


def settings_of(cell: Cell | Mapping) -> dict:
    """The loader's settings in a cell (or in Cell.asdict), by name."""
    return {axis: cell[axis] if isinstance(cell, Mapping) else getattr(cell, axis) for axis in AXES}


def variants(cells: Iterable[Cell], dataset: str, loader: str) -> list[dict]:
    """The distinct settings of a loader on a dataset, sorted, whatever the order of the config."""
    ours = [settings_of(cell) for cell in cells if (cell.dataset, cell.loader) == (dataset, loader)]
    distinct = {json.dumps(settings): settings for settings in ours}
    return [distinct[key] for key in sorted(distinct)]


def refused(verdict: str, cell: Cell) -> bool:
    """Whether a verdict file says that a cell's settings failed; False without a readable one."""
    return settings_of(cell) in failed(verdict)


@cache  # thousands of cells ask for a few files
def failed(verdict: str) -> list[dict]:
    """The settings that a verdict file says failed; none without a readable one."""
    try:
        judged = json.loads(Path(verdict).read_text())["variants"]
        return [one["settings"] for one in judged if one["status"] == "failed"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
