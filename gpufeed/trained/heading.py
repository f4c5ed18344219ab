"""The fields that the documents of a model and of its evaluation begin with."""

from typing import Any

from gpufeed.document import now
from gpufeed.environment import environment
from gpufeed.experiment import Cell
from gpufeed.parts import Place
from gpufeed.trained.record import SCHEMA_VERSION


def heading(
    cell: Cell,
    place: Place,
    started_at: str,
    status: str,
    sentence: str | None,
    planned_on: str,
    attempt: int,
) -> dict[str, Any]:
    """Of work that ends now. started_at: as gpufeed.document.now gave it."""
    return {
        "schema_version": SCHEMA_VERSION,
        "experiment": cell.experiment,
        "cell_id": cell.id,
        "attempt": attempt,
        "status": status,
        "sentence": sentence,
        "planned_on": planned_on,
        "started_at": started_at,
        "finished_at": now(),
        "cell": cell.asdict(),
        "environment": environment(place.device),
    }
