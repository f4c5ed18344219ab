"""When each repeat is measured: block after block, each in its own random order, the same on every node.

A block is one repeat of every cell. A block runs its experiments one after another, each with its comparisons
one after another (one model at one number of cores). All three orders are drawn for every block. So no cell
always follows the same one, and the cells of a comparison run within minutes. Standard library only: the
workflow imports this while it plans.
"""

import hashlib
from collections.abc import Iterable, Mapping
from functools import cache

from gpufeed.core.cells import Cell


def comparison(cell: Cell) -> str:
    """Return the group in which a cell is compared: dataset, model and cores; "" without `cores`."""
    return "" if cell.cores is None else f"{cell.dataset}/{cell.model}/{cell.cores}"


class Schedule:
    """The priorities of measurements; Snakemake starts the ready job with the highest.

    cells: experiment -> id -> cell. blocks: the largest number of repeats. Priorities are small integers, one
    for each measurement, since a solver handles them as floats.
    """

    def __init__(self, cells: Mapping[str, Mapping[str, Cell]], seed: int, blocks: int):
        self.cells, self.seed, self.blocks = cells, seed, blocks
        self.size = sum(map(len, self.cells.values()))
        self._places = cache(self._in_block)

    @property
    def before_all(self) -> int:
        """Priority of what comes first: a cell that waits for a verdict would miss its block."""
        return self.blocks * self.size + 1

    def priority(self, experiment: str, cell_id: str, repeat: int) -> int:
        """Return the priority of one repeat of a cell."""
        return (self.blocks - repeat) * self.size - self._places(repeat)[experiment, cell_id]

    def _in_block(self, repeat: int) -> dict[tuple[str, str], int]:
        """Return (experiment, cell) -> its position in a block, from 0."""
        turns = []
        for name in shuffled(self.cells, self.seed, repeat):
            compared: dict[str, list[str]] = {}
            for cell_id, cell in self.cells[name].items():
                compared.setdefault(comparison(cell), []).append(cell_id)
            for group in shuffled(compared, self.seed, repeat, name):
                ids = shuffled(compared[group], self.seed, repeat, name)
                turns += [(name, cell_id) for cell_id in ids]
        return {turn: place for place, turn in enumerate(turns)}


def shuffled(names: Iterable[str], *seeds: object) -> list[str]:
    """Return the names in an order drawn from the seeds; adding a name keeps the order of the others."""

    def drawn(name: str) -> str:
        return hashlib.sha256("/".join(map(str, (*seeds, name))).encode()).hexdigest()

    return sorted(names, key=drawn)
