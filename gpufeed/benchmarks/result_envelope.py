"""How a measurement that needs no cell went: done, skipped by what the node lacks, or failed, and why."""

import logging
from collections.abc import Callable
from typing import Any

import torch

from gpufeed.core.errors import Skip, one_line
from gpufeed.system.devices import resolve_device

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
