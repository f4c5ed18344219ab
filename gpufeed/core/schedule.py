"""When each repeat is measured: block after block, each in a random order that is the same everywhere.

A block is one repeat of every cell. Within it experiments come one after another, in each of them one
comparison after another (one model at one number of cores), and in each of these its cells. All three orders
are drawn for every block: no cell always follows the same one, and two cells of one comparison, of which
ratios are made, are minutes apart whatever else is measured.
Standard library only: the workflow imports this while it plans.
"""

import hashlib
from collections.abc import Iterable, Mapping
from functools import cache

from gpufeed.core.cells import Cell


def comparison(cell: Cell) -> str:
    """What the cell is compared in: its dataset, model and cores; "" for all that choose no cores."""
    return "" if cell.cores is None else f"{cell.dataset}/{cell.model}/{cell.cores}"


class Order:
    """The priorities by which Snakemake starts measurements: of those that are ready the highest is next.

    cells: experiment -> id -> cell. blocks: the most repeats that a cell may come to have. Numbers are
    kept small, one a measurement, since a solver weighs them in floating point.
    """

    def __init__(self, cells: Mapping[str, Mapping[str, Cell]], seed: int, blocks: int):
        self.cells, self.seed, self.blocks = cells, seed, blocks
        self.size = sum(map(len, self.cells.values()))
        self._places = cache(self._in_block)

    @property
    def before_all(self) -> int:
        """Of what comes before all measurements: a cell that waits for a verdict would miss its block."""
        return self.blocks * self.size + 1

    def priority(self, experiment: str, cell_id: str, repeat: int) -> int:
        """Of one repeat of a cell."""
        return (self.blocks - repeat) * self.size - self._places(repeat)[experiment, cell_id]

    def _in_block(self, repeat: int) -> dict[tuple[str, str], int]:
        """(experiment, cell) -> its place in that block, from 0 on."""
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
    """The names in an order that the seeds decide; one name more or less leaves the order of the others."""

    def drawn(name: str) -> str:
        return hashlib.sha256("/".join(map(str, (*seeds, name))).encode()).hexdigest()

    return sorted(names, key=drawn)
