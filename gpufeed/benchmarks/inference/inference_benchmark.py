"""Measures a kept model with each backend in one process: accuracy, latency of one image, throughput.

Backends alternate from round to round, so that changes of the machine affect all of them equally. Images are
on the device before the clock starts: this measures the model, not its input.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from gpufeed.benchmarks.cell_document import cell_document
from gpufeed.benchmarks.inference import inference_row
from gpufeed.benchmarks.inference.backend import Setting
from gpufeed.benchmarks.inference.calibration_images import first, for_evaluation, opened, requested
from gpufeed.benchmarks.inference.exported_files import Files, find, troubles
from gpufeed.benchmarks.inference.inference_row import Row, row_fields
from gpufeed.benchmarks.saved_models.evaluation import check_classes
from gpufeed.benchmarks.saved_models.model_file import load
from gpufeed.core.cells import Cell
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.plan_inference import pairs
from gpufeed.core.record import INFERENCE, INFERENCE_VERSION
from gpufeed.datasets.manifest import Manifest
from gpufeed.loaders.base import LoadRequest
from gpufeed.system.devices import apply_precision, resolve_device, resolve_precision
from gpufeed.training.runtime_context import RuntimeContext, Stores

log = logging.getLogger("gpufeed")
NOTHING = {"schema_version": INFERENCE_VERSION, **dict.fromkeys(("trained", "resolved", "split")), "rows": []}


def measure_inference(
    cell: dict,
    model: str | Path,
    files: Files,
    manifest: str | Path,
    stores: Stores,
    settings: Mapping[str, Any],
    planned_on: str,
    **asked: Any,
) -> dict[str, Any]:
    """Return the measurement (gpufeed/core/schemas/inference.schema.yaml) of a cell's model.pt.

    files: those exported from it. settings: of gpufeed.core.plan_inference. planned_on, asked: as in
    cell_document. What stops one backend becomes status and sentence of its row, and the others continue.
    """

    def work(cell: Cell, place: RuntimeContext) -> dict[str, Any]:
        return measured(cell, Path(model), files, Path(manifest), stores, settings, place)

    nothing = {**NOTHING, "settings": {**settings, "warmup": inference_row.WARMUP}}
    return cell_document(cell, work, nothing, planned_on, **asked)


def measured(
    cell: Cell,
    model: Path,
    files: Files,
    manifest: Path,
    stores: Stores,
    settings: Mapping[str, Any],
    place: RuntimeContext,
) -> dict[str, Any]:
    """Return the fields of a finished measurement; raise Skip or the error that stops all of it."""
    saved, samples = load(model), Manifest.read(manifest)
    check_classes(saved, samples)
    place.device = resolve_device(cell.device)
    apply_precision("fp32")
    batches = sorted(settings["batch_sizes"])
    request = for_evaluation(requested(cell, samples, stores, place.device, batches[0]))
    examples = first(cell, request, batches[-1])
    rows, labels = [Row(*pair) for pair in pairs(settings)], None
    with torch.no_grad():
        for batch in [1, *batches]:
            images = examples[:batch].clone()
            about = fallback(images.device), cell.channels_last
            for row in rows:
                row.prepare(Setting(saved, files, images, row.precision, *about))
            if batch == batches[0]:
                labels = answer(cell, request, rows, batch)
            time_rounds(rows, images, settings, single=batch == 1)
            for row in rows:
                row.release()
    others = {
        row.precision: torch.cat(row.predicted)
        for row in rows
        if row.backend == "eager" and row.precision in ("fp32", "bf16") and len(row.predicted) > 0
    }
    others = {name: answers for name, answers in others.items() if len(answers) == len(labels)}
    return {
        "trained": saved.training(),
        "resolved": {"device": place.device.type, "threads": torch.get_num_threads()},
        "split": request.split,
        "rows": [row_fields(row, labels, others) for row in rows],
    }


def fallback(device: torch.device) -> str:
    """Return the type of layers that are not quantised: bf16 on GPUs that support it, fp32 elsewhere."""
    if device.type != "cuda":
        return "fp32"
    try:
        return resolve_precision("bf16", device)
    except Skip:
        return "fp32"


def answer(cell: Cell, request: LoadRequest, rows: Sequence[Row], batch: int) -> torch.Tensor:
    """Run every ready row on all images of the request's split; return the labels, int64 (n,).

    The last batch is padded with copies of its first image, whose predictions do not count.
    """
    labels: list[torch.Tensor] = []
    with opened(cell, request) as batches:
        for images, own in batches:
            labels.append(own)
            n = len(images)
            whole = torch.cat([images, images[:1].expand(batch - n, -1, -1, -1)])
            for row in rows:
                if row.ready is None:
                    continue
                try:
                    row.predicted.append(row.ready.run(whole)[:n].argmax(1).clone())
                except Exception as error:
                    row.stop(error, batch)
    expected = len(request.manifest.ids(request.split))
    if sum(map(len, labels)) != expected:
        raise GpufeedError(
            f"{sum(map(len, labels))} images from {cell.loader} in the evaluation",
            f"each of the {expected} of split {request.split!r} once",
            "choose another loader and report this one",
        )
    return torch.cat(labels)


def time_rounds(rows: Sequence[Row], images: torch.Tensor, settings: Mapping[str, Any], single: bool) -> None:
    """Time the rows that are ready, alternating, with every other round in reverse order.

    single: wait for each call, instead of queueing many.
    """
    rounds, batch = settings["rounds"], len(images)
    for number in range(rounds):
        for row in rows if number % 2 == 0 else reversed(rows):
            if row.ready is None:
                continue
            try:
                if single:
                    host, device = inference_row.latencies(
                        row.ready.run, images, -(-settings["calls"] // rounds)
                    )
                    row.host_ms += host
                    row.device_ms = None if device is None else [*(row.device_ms or []), *device]
                else:
                    rate = inference_row.images_per_s(row.ready.run, images, settings["seconds"])
                    row.rates.setdefault(batch, []).append(rate)
            except Exception as error:
                row.stop(error, batch)
    for row in rows:
        if row.ready is not None:
            log.info("%s, batch %d: measured", row.name, batch)


def for_job(job: Any) -> None:
    """Run rule measure_inference. job: a gpufeed.job.Job."""
    job.take_gpus(1, job.cell["device"])
    given, what = job.input, f"inference of {job.wildcards.cell}"
    files = find({given.exported: given.exported_files, given.quantised: given.quantised_files})
    found = measure_inference(
        job.cell, given.model, files, given.manifest, job.stores, job.params.settings, **job.common_arguments
    )
    job.write_document(found, job.output.inference, INFERENCE.write, what, troubles(found))
