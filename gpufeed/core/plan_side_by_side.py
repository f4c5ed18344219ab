"""Two pipelines side by side: find their cells, and the columns that are shown.

Standard library only: the workflow imports this while it plans.
"""

import json
from collections.abc import Mapping
from typing import Any

from gpufeed.core.cell_matrix import Plan, crossed
from gpufeed.core.errors import GpufeedError, require_known

PARTS = {"Load": "load_ms", "Transfer": "transfer_ms", "Train": "train_ms", "Total": "total_ms"}
TOTAL_SAYS = "Total is measured from the end of the previous batch, so it includes the wait for data."


def pair(config: Mapping, plan: Plan, experiment: str) -> dict[str, str]:
    """Return block -> id of its cell for the two blocks in `side_by_side`; {} without that key.

    Returns {} too if a cell is impossible under this config. Raises GpufeedError for an unknown block, a
    block of several cells, a cell without `synchronise: step`, and two blocks with the same cell.
    """
    found, where = {}, f"experiments.{experiment}.side_by_side"
    for block in (names := config["experiments"][experiment].get("side_by_side", [])):
        require_known("block", block, plan.blocks[experiment], where)
        cells = list(dict.fromkeys(plan.blocks[experiment][block]))
        if len(cells) > 1 or any(plan.cells[experiment][cell].synchronise != "step" for cell in cells):
            raise GpufeedError(
                f"block {block!r} in {where}: {len(cells)} cells, synchronise "
                f"{' and '.join(sorted({plan.cells[experiment][cell].synchronise for cell in cells}))}",
                "a block of one cell with `synchronise: step`, which times each phase",
                "give the block one value per axis and `synchronise: step`, or name another block",
            )
        if cells:
            found[block] = cells[0]
    if len(found) > len(set(found.values())):
        raise GpufeedError(
            f"blocks {' and '.join(map(repr, found))} in {where}, which are the same cell",
            "two cells to compare",
            "give one of the blocks another value of an axis, or name another block",
        )
    return found if len(found) == len(names) else {}


def words(block: str) -> str:
    """Return a block's name with spaces for underscores."""
    return block.replace("_", " ")


def block_of(config: Mapping, name: str, cell: Mapping) -> str | None:
    """Return the block in `side_by_side` whose cell this is (Cell.asdict), or None."""
    asked = config["experiments"][name].get("side_by_side", [])
    for block, made in crossed(config, name) if asked else ():
        if block in asked and as_text(made.asdict()) == as_text(cell):
            return block
    return None


def as_text(cell: Mapping) -> str:
    """Return a cell as JSON without its hyper-parameters, which follow from its overrides."""
    return json.dumps({**cell, "hyper": None}, sort_keys=True)


def line(name: object, values: Any) -> str:
    """Return a line of the table: a name and four times in milliseconds, or the column headings."""
    cells = [f"{value:>12.2f}" if isinstance(value, float) else f"{value:>12}" for value in values]
    return f"{name:>6}" + "".join(cells)
