"""The part of a plan that a run measures: the cells that `only` selects, and one block of their repeats.

Standard library only: the workflow imports this while it plans.
"""

import json
from collections.abc import Mapping
from typing import Any

from gpufeed.core.cell_matrix import Plan
from gpufeed.core.cells import AXES, Cell
from gpufeed.core.errors import GpufeedError, require_known


def chosen(config: Mapping, plan: Plan) -> dict[str, dict[str, Cell]]:
    """Return experiment -> its cells that a run measures: all, or those that match `only`.

    Values are compared as text, since Snakemake reads nested values of `--config` as text.
    """
    return {name: matching(cells, config["only"]) for name, cells in plan.cells.items()}


def matching(cells: Mapping[str, Cell], only: Mapping[str, Any]) -> dict[str, Cell]:
    """Return the cells that have these values. only: axis -> value, or a list of values."""
    lists = {axis: value if isinstance(value, list) else [value] for axis, value in only.items()}
    wanted = {axis: set(map(as_text, values)) for axis, values in lists.items()}
    return {
        id: cell
        for id, cell in cells.items()
        if all(as_text(getattr(cell, axis)) in texts for axis, texts in wanted.items())
    }


def as_text(value: Any) -> str:
    """Return a value of an axis as text, the same for 0, 0.0 and "0", and for true and "True"."""
    if isinstance(value, str):
        try:
            value = json.loads(value.lower())
        except ValueError:
            return value
    is_number = isinstance(value, float | int) and not isinstance(value, bool)
    return f"{value:g}" if is_number else json.dumps(value)


def check_part(config: Mapping, plan: Plan) -> None:
    """Raise GpufeedError for an `only` or `block` that leaves nothing to measure."""
    for axis in config["only"]:
        require_known("axis", axis, AXES, "only")
    if not any(chosen(config, plan).values()):
        raise GpufeedError(
            f"no cell with {', '.join(f'{axis} {value!r}' for axis, value in config['only'].items())} (only)",
            "values that a cell of an experiment has",
            "correct `only`, or add such a cell to a block",
        )
    if config["block"] is not None and config["block"] >= plan.most_repeats:
        raise GpufeedError(
            f"block {config['block']}, and at most {plan.most_repeats} repeats in any experiment",
            f"at most {plan.most_repeats - 1}, since blocks are counted from 0",
            "raise `repeats`, or name another block",
        )
