"""The fields that the documents of a model and of its evaluation begin with."""

from typing import Any

from gpufeed.core.cells import Cell
from gpufeed.core.document import now
from gpufeed.core.record import MODEL_VERSION
from gpufeed.system.environment import environment
from gpufeed.training.runtime_context import Place


def heading(
    cell: Cell,
    place: Place,
    started_at: str,
    status: str,
    sentence: str | None,
    planned_on: str,
    attempt: int,
) -> dict[str, Any]:
    """Of work that ends now. started_at: as gpufeed.core.document.now gave it."""
    return {
        "schema_version": MODEL_VERSION,
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
