"""When each repeat is measured: block after block, each in a random order that is the same everywhere.

A block is one repeat of every cell. Within it experiments come one after another, and so do the cells of
each, both in an order drawn anew for every block: no cell always follows the same one, and two cells of one
experiment, of which ratios are made, are minutes apart whatever else is measured.
Standard library only: the workflow imports this while it plans.
"""

import hashlib
from collections.abc import Iterable, Mapping
from functools import cache


class Order:
    """The priorities by which Snakemake starts measurements: of those that are ready the highest is next.

    cells: experiment -> ids of its cells. blocks: the most repeats that a cell may come to have. Numbers are
    kept small, one a measurement, since a solver weighs them in floating point.
    """

    def __init__(self, cells: Mapping[str, Iterable[str]], seed: int, blocks: int):
        self.cells = {name: tuple(ids) for name, ids in cells.items()}
        self.seed, self.blocks = seed, blocks
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
        turns = [
            (name, cell_id)
            for name in shuffled(self.cells, self.seed, repeat)
            for cell_id in shuffled(self.cells[name], self.seed, repeat, name)
        ]
        return {turn: place for place, turn in enumerate(turns)}


def shuffled(names: Iterable[str], *seeds: object) -> list[str]:
    """The names in an order that the seeds decide; one name more or less leaves the order of the others."""

    def drawn(name: str) -> str:
        return hashlib.sha256("/".join(map(str, (*seeds, name))).encode()).hexdigest()

    return sorted(names, key=drawn)
