"""The three ceilings of one cell, measured in one process with one prepared training step."""

import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gpufeed.benchmarks.ceilings.segments import Bench, ReplayedBatch
from gpufeed.benchmarks.ceilings.shares import ALONE, END, rates, shares, summary
from gpufeed.benchmarks.ceilings.stages import (
    COLD_ROUNDS,
    ROUNDS,
    cold_runs,
    example_batch,
    input_runs,
    stages,
)
from gpufeed.benchmarks.cell_document import cell_document
from gpufeed.core.cells import Cell
from gpufeed.core.errors import GpufeedError
from gpufeed.core.plan_ceilings import refused
from gpufeed.core.record import CEILINGS, CEILINGS_VERSION
from gpufeed.system.page_cache import read_in
from gpufeed.training.cell_training import Ready, made_ready
from gpufeed.training.runtime_context import RuntimeContext, Stores, page_cached_share
from gpufeed.training.smaller_batch import fitting

log = logging.getLogger("gpufeed")
MEASURED = ("resolved", "shared_cores", "dataset", "segment", "start_up", "shares", "images_per_s")
NOTHING = {
    "schema_version": CEILINGS_VERSION,
    **dict.fromkeys((*MEASURED, "input_only", "stages", "cached_share")),
    "pairs": [],
}


def measure_ceilings(
    cell: dict,
    manifest: str | Path,
    stores: Stores,
    settings: Mapping[str, Any],
    planned_on: str,
    gate: str | Path | None = None,
    tuning: str | Path | None = None,
    **asked: Any,
) -> dict[str, Any]:
    """Return the ceilings of a cell (Cell.asdict), with the seed of repeat 0.

    The document follows core/schemas/ceilings.schema.yaml. settings: of gpufeed.core.plan_ceilings. gate,
    tuning: as in gpufeed.benchmarks.end_to_end. planned_on, asked: as in cell_document.
    """
    used = {"rounds": ROUNDS, "cold_rounds": COLD_ROUNDS, **settings}

    def work(cell: Cell, place: RuntimeContext) -> dict[str, Any]:
        tuned = place.tune(cell, tuning)
        return measured(tuned, Path(manifest), stores, used, place, gate and Path(gate))

    return cell_document(cell, work, {**NOTHING, "settings": used}, planned_on, **asked)


def measured(
    cell: Cell,
    manifest: Path,
    stores: Stores,
    settings: Mapping[str, Any],
    place: RuntimeContext,
    gate: Path | None,
) -> dict[str, Any]:
    """Return the fields of a finished measurement; raise Skip, NotPassed or the error that stops it."""
    if reason := refused(cell):
        raise GpufeedError(reason, "a cell with trainer plain on one device", "measure another cell")

    def with_batch(one: Cell) -> dict[str, Any]:
        with made_ready(one, 0, manifest, stores, place, gate) as ready:
            found = of_ready(ready, settings)
            if ready.loader.decode_counts is not None:
                ready.loader.decode_counts.check()
        return found

    size, found = fitting(cell, with_batch)
    place.batch_size = size if size != cell.batch_size else None
    # without a GPU, loader and training compete for the same cores
    return {"resolved": place.resolved(), "shared_cores": place.device.type == "cpu", **found}


def of_ready(ready: Ready, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return all measurements of a cell that is set up and has not trained yet."""
    loader, bench = ready.loader, Bench(ready.trainer)
    first = bench.train(loader, 1)  # a cold start: workers start, the page cache is as it was
    read_in(loader.files())
    alone = ReplayedBatch(ready.request, example_batch(loader))
    bench.segment(alone, 1)
    images, batches = loader.share, len(loader)
    epochs = epochs_of_a_segment(bench.segment(loader, 1).seconds, settings)
    log.info("segments of %d epochs, each of %d images in %d batches", epochs, images, batches)
    pairs = bench.pairs(loader, alone, epochs, settings["pairs"])
    files = loader.files()
    cached = page_cached_share([Path(file) for file in files]) if files else None
    seconds, firsts, reasons = input_runs(loader, ready.request, epochs, settings["rounds"])
    cold = cold_runs(loader, lambda: bench.segment(loader, 1, lead_in=False).seconds, settings["cold_rounds"])
    of_sides = rates(pairs, images * epochs)
    epoch_s = {side: images / of_sides[side]["median"] for side in of_sides}
    return {
        "dataset": {"images": images, "batches": batches},
        "segment": {"epochs": epochs, "images": images * epochs},
        "start_up": {
            "setup_s": ready.setup_s,
            "open_s": ready.open_s,
            "first_batch_s": first.first_batch_s,
            "first_epoch_s": first.epochs[0]["epoch_s"],
            "epoch_s": epoch_s[END],
            "epoch_start_s": float(np.median([pair[END]["start_s"] for pair in pairs])) / epochs,
        },
        "pairs": pairs,
        "shares": shares(pairs),
        "images_per_s": {**of_sides, "input_only": summary(images / s for s in seconds["input_only"])},
        "input_only": {"epoch_s": seconds["input_only"], "first_batch_s": float(np.median(firsts))},
        "stages": stages(seconds, reasons, cold, images, epoch_s[END], epoch_s[ALONE]),
        "cached_share": cached,
    }


def epochs_of_a_segment(epoch_s: float, settings: Mapping[str, Any]) -> int:
    """Return the epochs of a segment, so that all end-to-end segments together take `least_s`."""
    return max(1, math.ceil(settings["least_s"] / (settings["pairs"] * max(epoch_s, 1e-6))))


def for_job(job: Any, verdict: Callable[[Mapping[str, Any]], str]) -> None:
    """Run rule measure_ceilings. job: a gpufeed.job.Job. verdict: finished document -> its sentence."""
    job.take_gpus(job.cell["devices"], job.cell["device"])
    found = measure_ceilings(
        job.cell,
        job.input.manifest,
        job.stores,
        job.params.settings,
        gate=job.gate,
        tuning=job.tuning,
        **job.common_arguments,
    )
    said = found["sentence"] or verdict(found)
    what = f"limits of {job.wildcards.cell}, {found['status']}"
    job.write_document(found, job.output.ceilings, CEILINGS.write, what, [said])
