"""One row of the kernel benchmark before it is measured, whatever its family."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Run = Callable[[], object]


class NotDone(Exception):
    """This implementation has no such work: it gets no row."""


@dataclass(frozen=True)
class Task:
    """names: what tells the row from others, such as work and implementation. make: sets the work up.

    facts: what else the row says before it is measured. bytes: read and written, None where they say nothing;
    yardstick: what moves as many bytes at full speed (gpufeed.benchmarks.kernels.kernel_clock.YARDSTICKS).
    amounts: rate -> how much of it one run does, so that over milliseconds it gives the rate's unit.
    """

    names: Mapping[str, Any]
    make: Callable[[], Run]
    facts: Mapping[str, Any]
    bytes: int | None = None
    yardstick: str | None = None
    amounts: Mapping[str, float | None] = field(default_factory=dict)
