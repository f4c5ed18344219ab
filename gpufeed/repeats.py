"""How many repeats an experiment has: a number, or as many as its cells need (`repeats: auto`).

Standard library only: the workflow imports this while it plans.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpufeed.errors import GpufeedError


@dataclass(frozen=True)
class Auto:
    """Blocks of repeats are added until the interval of every cell's median is narrow enough.

    least, most: repeats of a cell. within: how far from the median the ends of its 95 % interval may lie, as
    a share of it.
    """

    least: int = 6  # the fewest that have an interval
    most: int = 20
    within: float = 0.03

    def count(self, decision: Callable[[int], str | Path]) -> int:
        """The repeats that are wanted by the decisions so far.

        decision: the file that says whether so many repeats are too few ({"more": true}). It is asked for one
        number after another, and what it raises goes on its way; where there is no file, no more are wanted.
        """
        repeats = self.least
        while repeats < self.most and wants_more(decision(repeats)):
            repeats += 1
        return repeats


def wants_more(path: str | Path) -> bool:
    """Whether a decision is there and asks for another block."""
    try:
        return bool(json.loads(Path(path).read_text())["more"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def read_auto(value: int | str | Mapping, experiment: str) -> Auto | None:
    """What `repeats` of an experiment says; None for a number. Raises GpufeedError for bounds that cross."""
    if isinstance(value, int):
        return None
    found = Auto(**({} if value == "auto" else value))
    if found.most < found.least:
        raise GpufeedError(
            f"repeats of experiment {experiment!r}: least {found.least}, most {found.most}",
            "least no larger than most",
            "raise `most` or lower `least`",
        )
    return found
