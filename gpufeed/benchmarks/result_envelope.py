"""The fields that documents of several benchmarks begin with, and how errors become a status."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch

from gpufeed.core.cells import Cell
from gpufeed.core.document import now
from gpufeed.core.errors import Skip, one_line
from gpufeed.core.record import MODEL_VERSION
from gpufeed.system.devices import resolve_device
from gpufeed.system.environment import environment

log = logging.getLogger("gpufeed")


def node_document(
    what: str,
    device: str,
    work: Callable[[torch.device], dict[str, Any]],
    nothing: Mapping[str, Any],
    planned_on: str,
    attempt: int,
) -> dict[str, Any]:
    """Run work on a node that belongs to no cell, and return its document.

    what: the name of the work in the log. work: gets the device of that name, or cpu if the node lacks it;
    its fields are added. nothing: all other fields. A Skip gives status `skipped`, any other error `failed`,
    with a sentence. An interrupt or SIGTERM is not caught.
    """
    started_at, on = now(), torch.device("cpu")
    try:
        on = resolve_device(device)
        found = {"status": "done", "sentence": None, **work(on)}
    except Skip as skip:
        log.info("skipped: %s", skip)
        found = {"status": "skipped", "sentence": str(skip)}
    except Exception as error:
        log.exception("%s failed", what)
        found = {"status": "failed", "sentence": one_line(error)}
    about = {"attempt": attempt, "planned_on": planned_on, "started_at": started_at, "finished_at": now()}
    return {**nothing, **about, "environment": environment(on), **found}


def envelope(
    cell: Cell,
    device: torch.device,
    started_at: str,
    status: str,
    sentence: str | None,
    planned_on: str,
    attempt: int,
) -> dict[str, Any]:
    """Return the first fields of a document on work that ends now. started_at: from document.now."""
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
