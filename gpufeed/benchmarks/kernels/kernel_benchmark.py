"""Measures every work in every implementation and size, next to a copy or a triad of as many bytes."""

import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpufeed.augment.amounts import DTYPES
from gpufeed.benchmarks.kernels import activation_work, augment_work
from gpufeed.benchmarks.kernels.kernel_clock import (
    FLUSH_MIB,
    WARMUP,
    Clock,
    NotDone,
    Task,
    Yardsticks,
    device_ceilings,
)
from gpufeed.benchmarks.result_envelope import node_document
from gpufeed.core.errors import Skip, install, one_line
from gpufeed.core.plan_kernels import ACTIVATION, AUGMENT
from gpufeed.core.record import KERNELS, KERNELS_VERSION
from gpufeed.system.host_memory import keep_freed_blocks

log = logging.getLogger("gpufeed")
TASKS = {AUGMENT: augment_work.tasks, ACTIVATION: activation_work.tasks}


def measure_kernels(
    experiment: str,
    settings: dict,
    planned_on: str,
    device: str = "auto",
    attempt: int = 1,
    extension: str | Path | None = None,
) -> dict:
    """Return the benchmark (gpufeed/core/schemas/kernel.schema.yaml); settings: of core.plan_kernels.

    extension: the built library of gpufeed.native, for works that need it. Without a CUDA GPU the status is
    `skipped`. A row that raises is failed, and one that lacks a package is skipped. Both have a sentence, and
    the others continue.
    """
    keep_freed_blocks()
    nothing = {
        "schema_version": KERNELS_VERSION,
        "experiment": experiment,
        "settings": {**settings, "flush_mib": FLUSH_MIB, "warmup": WARMUP},
        "rows": [],
        "ceilings": None,
    }
    measured = partial(work, settings, extension=extension)
    return node_document("the benchmark", device, measured, nothing, planned_on, attempt)


def work(settings: dict, device: torch.device, extension: str | Path | None = None) -> dict:
    """Return the fields `ceilings` and `rows`; raise Skip without a CUDA GPU."""
    if device.type != "cuda":
        raise Skip(f"Kernels are measured on a CUDA GPU, and this node's device is {device.type}.")
    if extension is not None:
        activation_work.load_extension(extension)
    clock = Clock(device, settings["launches"])
    yardsticks = Yardsticks(device, clock)
    return {
        "ceilings": device_ceilings(device, clock, yardsticks, DTYPES[settings["dtype"]]),
        "rows": list(rows(settings, device, clock, yardsticks)),
    }


def rows(settings: dict, device: torch.device, clock: Clock, yardsticks: Yardsticks) -> Iterator[dict]:
    """Yield all rows, the smallest sizes first."""
    for task in TASKS[settings["family"]](settings, device):
        found = measured(task, clock, yardsticks)
        torch.cuda.empty_cache()  # free the memory of earlier sizes
        if found is not None:
            row = {**task.names, **task.facts, **against(found, task)}
            log.info("%s", row)
            yield row


def measured(task: Task, clock: Clock, yardsticks: Yardsticks) -> dict | None:
    """Return status, sentence and times in milliseconds; None if there is no such row."""
    empty = {"times": [], "call_ms": None, "copy_ms": None}
    try:
        run = task.make()
        found = {"times": clock.device_ms(run), "call_ms": clock.call_ms(run)}
        copy_ms = yardsticks.ms(task.yardstick, task.bytes) if task.yardstick and task.bytes else None
        return {"status": "done", "sentence": None, **found, "copy_ms": copy_ms}
    except NotDone:
        return None
    except Skip as skip:
        return {"status": "skipped", "sentence": str(skip), **empty}
    except ModuleNotFoundError as error:
        sentence = f"The package {error.name or error} is not installed here: {install(error.name)}."
        return {"status": "skipped", "sentence": sentence, **empty}
    except Exception as error:
        log.exception("a row failed")
        return {"status": "failed", "sentence": one_line(error), **empty}


def against(found: dict, task: Task) -> dict:
    """Return the row's results: quartiles, rates, and the time of its yardstick relative to its own."""
    times, copy_ms = found.pop("times"), found["copy_ms"]
    names = ("ms_median", "ms_q1", "ms_q3", "share_of_copy", *task.amounts)
    row = {**found, "launches": len(times), **dict.fromkeys(names)}
    if times:
        q1, median, q3 = (float(value) for value in np.percentile(times, (25, 50, 75)))
        row |= {"ms_median": median, "ms_q1": q1, "ms_q3": q3}
        row |= {rate: amount / median for rate, amount in task.amounts.items() if amount is not None}
        row["share_of_copy"] = copy_ms / median if copy_ms is not None else None
    return row


def for_job(job: Any) -> None:
    """Run rule measure_kernel. job: a gpufeed.job.Job."""
    job.take_gpus(1, job.params.device, share=False)
    found = measure_kernels(
        job.wildcards.experiment,
        job.params.settings,
        planned_on=job.planned_on,
        device=job.params.device,
        attempt=job.params.attempt,
        extension=job.input.get("extension") or None,
    )
    job.write_document(found, job.output[0], KERNELS.write, "kernels")
