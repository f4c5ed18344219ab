"""Every work by everybody over batch and image sizes, in one process, beside a copy of as many bytes."""

import logging
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch

from gpufeed.augment.amounts import DTYPES
from gpufeed.document import now
from gpufeed.environment import environment
from gpufeed.errors import Skip, one_line
from gpufeed.heap import keep_freed_blocks
from gpufeed.kernels.clock import FLUSH_MIB, WARMUP, Clock, copy_of
from gpufeed.kernels.plan import IMPLEMENTATIONS, WORKS
from gpufeed.kernels.record import SCHEMA_VERSION
from gpufeed.kernels.works import MAKERS, Batch, NotDone, Run, bytes_moved
from gpufeed.outcome import outcome

log = logging.getLogger("gpufeed")


def measure_kernels(
    experiment: str, settings: dict, planned_on: str, device: str = "auto", attempt: int = 1
) -> dict:
    """The benchmark (gpufeed/schemas/kernel.schema.yaml); settings: of gpufeed.kernels.plan.

    Without a CUDA GPU its status is `skipped`. A row that raises is failed, one that lacks a package
    skipped, both with a sentence, and the others go on.
    """
    keep_freed_blocks()
    started_at = now()
    on, found = outcome("the benchmark", device, lambda on: {"rows": list(rows(settings, on))})
    return {
        "schema_version": SCHEMA_VERSION,
        "experiment": experiment,
        "attempt": attempt,
        "planned_on": planned_on,
        "started_at": started_at,
        "finished_at": now(),
        "settings": {**settings, "flush_mib": FLUSH_MIB, "warmup": WARMUP},
        "environment": environment(on),
        "rows": [],
        **found,
    }


def rows(settings: dict, device: torch.device) -> Iterator[dict]:
    """All rows, the smallest images first; raises Skip without a CUDA GPU."""
    if device.type != "cuda":
        raise Skip(f"Kernels are measured on a CUDA GPU, and this node's device is {device.type}.")
    clock, copies = Clock(device, settings["launches"]), Copies(device)
    for size in settings["size"]:
        for n in settings["batch_size"]:
            yield from rows_of(Batch(n, size, DTYPES[settings["dtype"]], device), clock, copies)
            torch.cuda.empty_cache()


class Copies:
    """Times of copies, each size measured once."""

    def __init__(self, device: torch.device):
        self.device = device
        self.known: dict[int, float] = {}

    def ms(self, size: int, clock: Clock) -> float:
        """Median milliseconds of a copy that moves `size` bytes."""
        if size not in self.known:
            self.known[size] = float(np.median(clock.device_ms(copy_of(size, self.device))))
        return self.known[size]


def rows_of(batch: Batch, clock: Clock, copies: Copies) -> Iterator[dict]:
    """The rows of one batch."""
    for work in WORKS:
        for name in IMPLEMENTATIONS:
            moved, known = bytes_moved(work, name, batch)
            found = measured(partial(MAKERS[name], work, batch), clock, partial(copies.ms, moved, clock))
            if found is not None:
                row = {"work": work, "implementation": name, "batch_size": batch.n, "size": batch.size}
                row |= {"bytes": moved, "bytes_are": known, **against(found, batch.n, moved)}
                log.info("%s", row)
                yield row


def measured(make: Callable[[], Run], clock: Clock, copy_ms: Callable[[], float]) -> dict | None:
    """Status, sentence and times in milliseconds; None if there is no such row."""
    empty = {"times": [], "call_ms": None, "copy_ms": None}
    try:
        run = make()
        found = {"times": clock.device_ms(run), "call_ms": clock.call_ms(run)}
        return {"status": "done", "sentence": None, **found, "copy_ms": copy_ms()}
    except NotDone:
        return None
    except Skip as skip:
        return {"status": "skipped", "sentence": str(skip), **empty}
    except ModuleNotFoundError as error:
        return {"status": "skipped", "sentence": f"The package {error.name} is not installed here.", **empty}
    except Exception as error:
        log.exception("a row failed")
        return {"status": "failed", "sentence": one_line(error), **empty}


def against(found: dict, images: int, moved: int) -> dict:
    """What a row says of its times: quartiles, rates, and the time of a copy over its own."""
    times = found.pop("times")
    if not times:
        names = ("ms_median", "ms_q1", "ms_q3", "images_per_s", "gb_per_s", "share_of_copy")
        return {**found, "launches": 0, **dict.fromkeys(names)}
    q1, median, q3 = (float(value) for value in np.percentile(times, (25, 50, 75)))
    return {
        **found,
        "launches": len(times),
        "ms_median": median,
        "ms_q1": q1,
        "ms_q3": q3,
        "images_per_s": images / median * 1e3,
        "gb_per_s": moved / median / 1e6,
        "share_of_copy": found["copy_ms"] / median,
    }
