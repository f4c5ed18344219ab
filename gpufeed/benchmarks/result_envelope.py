"""What the documents of several benchmarks share: status and reason, and the fields that they begin with."""

import logging
from collections.abc import Callable
from typing import Any

import torch

from gpufeed.core.cells import Cell
from gpufeed.core.document import now
from gpufeed.core.errors import Skip, one_line
from gpufeed.core.record import MODEL_VERSION
from gpufeed.system.devices import resolve_device
from gpufeed.system.environment import environment

log = logging.getLogger("gpufeed")


def outcome(
    what: str, device: str, work: Callable[[torch.device], dict[str, Any]]
) -> tuple[torch.device, dict[str, Any]]:
    """The device behind a name (cpu where the node lacks it), and status, sentence and what `work` adds.

    A Skip gives `skipped`, any other error `failed`, with a sentence and nothing of `work`; `what` is
    what the log calls it. An interrupt or SIGTERM goes on its way.
    """
    on = torch.device("cpu")
    try:
        on = resolve_device(device)
        return on, {"status": "done", "sentence": None, **work(on)}
    except Skip as skip:
        log.info("skipped: %s", skip)
        return on, {"status": "skipped", "sentence": str(skip)}
    except Exception as error:
        log.exception("%s failed", what)
        return on, {"status": "failed", "sentence": one_line(error)}


def heading(
    cell: Cell,
    device: torch.device,
    started_at: str,
    status: str,
    sentence: str | None,
    planned_on: str,
    attempt: int,
) -> dict[str, Any]:
    """Return the first fields of a document on work that ends now. started_at: as document.now gave it."""
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
        "environment": environment(device),
    }
