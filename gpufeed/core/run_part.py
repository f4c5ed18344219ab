"""The part of a plan that a run measures: the cells that `only` selects, and one block of their repeats.

Standard library only: the workflow imports this while it plans.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from gpufeed.core.cell_matrix import Plan
from gpufeed.core.cells import Cell
from gpufeed.core.errors import GpufeedError


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


def nothing_in(config: Mapping, plan: Plan, experiments: Iterable[str]) -> GpufeedError:
    """Return the error for an `only` or `block` that leaves nothing to measure in these experiments."""
    names, cells = list(experiments), chosen(config, plan)
    repeats = plan.repeats | {name: auto.most for name, auto in plan.auto.items()}
    there = [repeats[name] for name in names if cells[name]]
    if not there:
        values = ", ".join(f"{axis} {value!r}" for axis, value in config["only"].items())
        return GpufeedError(
            f"no cell{values and f' with {values} (only)'} in {', '.join(names)}",
            "a cell of the experiments that the command names (without a name: of `run`)",
            "correct `only`, name another experiment as target, or add such a cell to a block",
        )
    return GpufeedError(
        f"block {config['block']}, and at most {max(there)} repeats in {', '.join(names)}",
        f"at most {max(there) - 1}, since blocks are counted from 0",
        "name another block, or raise `repeats`",
    )
