"""The impact table of an experiment: pairs of its cells that differ in one change.

Standard library only: used while planning.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpufeed.core.cell_matrix import combinations, crossed, flat
from gpufeed.core.cells import AXES, Cell
from gpufeed.core.errors import GpufeedError

OF_WORKERS = ("workers", "prefetch_factor", "persistent_workers")  # depend on the loader


@dataclass(frozen=True)
class Change:
    """Two cells, as {axis: value}, that differ in one axis."""

    words: str
    axis: str
    before: dict
    after: dict


@dataclass(frozen=True)
class Goal:
    """A target for a cell, given as {axis: value}.

    An epoch takes less than epoch_s seconds, or the rate is at least `times` that of the cell `over`.
    """

    words: str
    cell: dict
    epoch_s: float | None = None
    over: dict | None = None
    times: float | None = None


@dataclass(frozen=True)
class Impact:
    """The rows of the table; rows whose cells are impossible under this config are left out."""

    context: str = ""
    changes: list[Change] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)


def planned_impact(config: Mapping, experiment: str, planned: Iterable[Cell]) -> Impact | None:
    """Return the impact table of an experiment; None without `impact`.

    planned: its cells. Raises GpufeedError for a row whose axes do not select one cell.
    """
    block = config["experiments"][experiment].get("impact")
    if block is None:
        return None
    where, base = f"experiments.{experiment}.impact", block.get("base", {})
    cells = Cells(config, experiment, planned)
    changes, goals = [], []
    for number, row in enumerate(block["rows"]):
        at = f"{where}.rows[{number}]"
        ((axis, _),) = row["after"].items()
        before = cells.pick({**base, **row["before"]}, f"{at}.before")
        after = before and cells.pick(changed(before, row["after"]), f"{at}.after")
        if before and after and before[axis] == after[axis]:
            raise GpufeedError(
                f"{axis} unchanged in {at}.after", "a value other than before", "correct its `after`"
            )
        if before and after:
            changes.append(Change(row["change"], axis, before, after))
    for number, row in enumerate(block.get("goals", [])):
        at = f"{where}.goals[{number}]"
        cell = cells.pick({**base, **row["cell"]}, f"{at}.cell")
        over = cells.pick({**base, **row["over"]}, f"{at}.over") if "over" in row else None
        if cell and (over or "over" not in row):
            goals.append(Goal(row["goal"], cell, row.get("epoch_s"), over, row.get("times")))
    return Impact(block.get("context", ""), changes, goals)


def changed(before: Mapping, after: Mapping) -> dict:
    """Return the selector of the cell after a change: the axes of the cell before, with those of `after`."""
    gone = OF_WORKERS if {"loader", *OF_WORKERS} & set(after) else ()
    kept = {axis: value for axis, value in before.items() if axis not in gone}
    return {**kept, "overrides": [kept["overrides"]], **after}


def axes_of(cell: Cell) -> dict:
    """Return {axis: value} of a cell."""
    return {name: getattr(cell, name) for name in sorted(AXES)} | {"overrides": list(cell.overrides)}


class Cells:
    """The cells of an experiment by their axes, including those that this config makes impossible."""

    def __init__(self, config: Mapping, experiment: str, planned: Iterable[Cell]):
        self.stand_ins = config["use_instead"]
        self.planned = [axes_of(cell) for cell in planned]
        self.crossed = [axes_of(cell) for _, cell in crossed(config, experiment)]

    def pick(self, selector: Mapping, where: str) -> dict | None:
        """Return the axes of the planned cell that a selector matches; None if that cell is impossible.

        Raises GpufeedError if it matches several cells, or none of any block.
        """
        try:
            (wanted,) = combinations(selector)
        except ValueError:
            raise GpufeedError(f"a list in {where}", "one value for each axis", "leave one value") from None
        if "overrides" in wanted:
            wanted["overrides"] = list(flat(wanted["overrides"] or ()))
        if "dataset" in wanted:
            wanted["dataset"] = self.stand_ins.get(wanted["dataset"], wanted["dataset"])
        found = [cell for cell in self.planned if matches(cell, wanted)]
        if len(found) == 1:
            return found[0]
        if not found and any(matches(cell, wanted) for cell in self.crossed):
            return None
        told = ", ".join(f"{axis} {value!r}" for axis, value in wanted.items()) or "any values"
        raise GpufeedError(
            f"{len(found) or 'no'} cells with {told}, in {where}",
            "one cell of the experiment's blocks",
            "name more axes" if found else "correct the row, remove it, or add the cell to a block",
        )


def matches(cell: Mapping, wanted: Mapping) -> bool:
    """Return whether a cell has all these values."""
    return all(cell[axis] == value for axis, value in wanted.items())
