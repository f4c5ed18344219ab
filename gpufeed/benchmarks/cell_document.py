"""The document of a measurement of one cell: its settings, its status and its results."""

from collections.abc import Callable, Mapping
from typing import Any

from gpufeed.benchmarks.result_envelope import envelope
from gpufeed.core.cells import Cell
from gpufeed.core.document import now
from gpufeed.training.cell_training import read_cell, settle_process, with_status
from gpufeed.training.runtime_context import RuntimeContext


def cell_document(
    cell: dict,
    work: Callable[[Cell, RuntimeContext], dict[str, Any]],
    nothing: Mapping[str, Any],
    planned_on: str,
    attempt: int = 1,
    threads: int | None = None,
) -> dict[str, Any]:
    """Run work for a cell (Cell.asdict), and return its document.

    work: what it returns is added; it may find the RuntimeContext. nothing: its fields where it is stopped.
    What stops it becomes status and sentence; an interrupt or SIGTERM leaves no document. threads: what torch
    may use on the CPU, cut to the cores allowed; None leaves torch's choice.
    """
    cell_, started_at, place = read_cell(cell), now(), RuntimeContext()
    settle_process(threads)
    status, sentence, found = with_status(cell_, lambda: work(cell_, place))
    about = envelope(cell_, place.device, started_at, status, sentence, planned_on, attempt)
    return about | nothing | (found or {})
