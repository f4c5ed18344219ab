"""One repeat of one cell: build it, run it, and put what happened into a record."""

import logging
import resource
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import torch
from torch import nn

from gpufeed import gpu, registry
from gpufeed.cache import read_info
from gpufeed.data.manifest import Manifest
from gpufeed.devices import apply_precision, resolve_device, resolve_precision
from gpufeed.document import now
from gpufeed.environment import cores_allowed, environment
from gpufeed.errors import Skip, first_line, one_line
from gpufeed.experiment import Cell
from gpufeed.gate.verdict import NotPassed, admit
from gpufeed.heap import keep_freed_blocks
from gpufeed.loaders.base import Loader, LoadRequest
from gpufeed.record import Record
from gpufeed.registry import fetch
from gpufeed.timing import STEP_COLUMNS, step_statistics, synchronise, throughput, warmup
from gpufeed.trainers.base import Trainer, TrainJob, TrainResult
from gpufeed.trainers.evaluate import evaluate

COLUMNS = {"experiment": "string", "cell_id": "string", "repeat": "int64", **STEP_COLUMNS}
SHOWN = 20  # quarantined files in a record; the log of prepare_dataset has them all
log = logging.getLogger("gpufeed")


@dataclass(frozen=True)
class Stores:
    """What was built from the dataset for its loader: the cache, the strips.bin; None if it reads none."""

    cache: Path | None = None
    strips: Path | None = None


@dataclass
class Outcome:
    """What a cell that ran to its end adds to its record, and its rows of the steps table."""

    rows: list[dict]
    fields: dict[str, Any] = field(default_factory=dict)


def measure(
    cell: dict,
    repeat: int,
    manifest: Path,
    cache: Path | None,
    planned_on: str,
    strips: Path | None = None,
    attempt: int = 1,
    threads: int | None = None,
    gate: Path | None = None,
) -> tuple[Record, pd.DataFrame]:
    """Runs one repeat of a cell (Cell.asdict) and returns its record and its steps.

    threads: what torch may use on the CPU, cut to the cores allowed; None leaves torch's choice.
    gate: the verdict on the cell's loader, without which nothing runs; None for a ceiling, which has none.

    What the node lacks gives status `skipped`, an error gives `failed`, both with a sentence; the
    steps (columns COLUMNS) are then empty. An interrupt or SIGTERM leaves no record.
    """
    ready_s = max(0.0, time.time() - psutil.Process().create_time())
    cell_ = Cell(**{**cell, "overrides": tuple(cell["overrides"])})
    started_at, device = now(), torch.device("cpu")
    keep_freed_blocks()
    if threads is not None:
        torch.set_num_threads(max(1, min(threads, cores_allowed())))
    stores = Stores(cache and Path(cache), strips and Path(strips))
    status, sentence, outcome = "done", None, Outcome([])
    try:
        if gate is not None:
            admit(gate)
        device = resolve_device(cell_.device)
        precision = resolve_precision(cell_.precision, device)
        outcome = run(cell_, repeat, Path(manifest), stores, device, precision, ready_s)
    except Skip as skip:
        status, sentence = "skipped", str(skip)
        log.info("skipped: %s", sentence)
    except NotPassed as refusal:
        status, sentence = "failed", str(refusal)
        log.error("not run: %s", sentence)
    except Exception as error:
        status, sentence = "failed", explain(error, cell_)
        log.exception("the cell failed")
    record = Record(
        experiment=cell_.experiment,
        cell_id=cell_.id,
        repeat=repeat,
        attempt=attempt,
        status=status,
        sentence=sentence,
        planned_on=planned_on,
        started_at=started_at,
        finished_at=now(),
        cell=cell_.asdict(),
        environment=environment(device),
        **outcome.fields,
    )
    return record, steps_table(record, outcome.rows)


def run(
    cell: Cell,
    repeat: int,
    manifest_path: Path,
    stores: Stores,
    device: torch.device,
    precision: str,
    ready_s: float,
) -> Outcome:
    """Sets a cell up, trains, evaluates; raises Skip or any error that stops it."""
    if cell.cuda_graphs and device.type != "cuda":
        raise Skip(f"CUDA graphs need a CUDA GPU, and this cell's device is {device.type}.")
    manifest, seed = Manifest.read(manifest_path), cell.seed + repeat
    torch.manual_seed(seed)
    apply_precision(precision)
    gpu.forget_peak(device)
    setup_start = time.perf_counter()
    augment = make_augment(cell.augment, cell, manifest, seed)
    request = load_request(cell, manifest, stores, device, seed, augment)
    model = make_model(cell, manifest, device)
    with fetch("loader", cell.loader)(request) as loader:
        trainer = make_trainer(cell, model, loader, augment, device, precision)
        trainer.prepare(example_batch(request))
        synchronise(device)
        setup_s = time.perf_counter() - setup_start
        batches = len(loader)
        result = trainer.run()
    memory = {"peak_gpu_mib": gpu.peak_mib(device), "peak_host_mib": peak_host_mib()}
    accuracy, evaluation_s = accuracy_of(cell, model, request, precision, seed)
    phases = {
        "start_to_ready_s": ready_s,
        "setup_s": setup_s,
        "first_batch_s": result.first_batch_s,
        "evaluation_s": evaluation_s,
    }
    fields = {
        "resolved": {"device": device.type, "precision": precision, "threads": torch.get_num_threads()},
        "phases": phases,
        "memory": memory,
        "accuracy": accuracy,
        "dataset": dataset_facts(manifest, stores),
        **statistics(result, batches),
    }
    return Outcome(result.steps, fields)


def dataset_facts(manifest: Manifest, stores: Stores) -> dict[str, Any]:
    """The field dataset of a record."""
    broken = manifest.info.quarantined
    return {
        "samples": len(manifest),
        "quarantined": len(broken),
        "examples": broken[:SHOWN],
        "cache": read_info(stores.cache).decoder_version if stores.cache else None,
    }


def statistics(result: TrainResult, batches_in_epoch: int) -> dict[str, Any]:
    """The fields warmup, steps, epochs and throughput of a record."""
    left_out = warmup(result.epochs, batches_in_epoch)
    counted = result.steps[left_out["steps"] :]
    return {
        "warmup": left_out,
        "steps": step_statistics(counted),
        "epochs": result.epochs,
        "throughput": throughput(counted),
    }


def make_model(cell: Cell, manifest: Manifest, device: torch.device) -> nn.Module:
    """The cell's model with one output a class, on the device."""
    return fetch("model", cell.model)(len(manifest.info.classes), **cell.hyper.get("model", {})).to(device)


def make_augment(name: str, cell: Cell, manifest: Manifest, seed: int) -> Any:
    """An augment for the manifest's mean and std; the cell's options belong to the cell's own augment."""
    options = cell.hyper.get("augment", {}) if name == cell.augment else {}
    return fetch("augment", name)(manifest.info.mean, manifest.info.std, seed, options)


def load_request(
    cell: Cell, manifest: Manifest, stores: Stores, device: torch.device, seed: int, augment: Any
) -> LoadRequest:
    """What the training loader gets to know; an augment for single samples travels in it."""
    return LoadRequest(
        manifest=manifest,
        split="train",
        batch_size=cell.batch_size,
        device=device,
        seed=seed,
        cache=stores.cache,
        strips=stores.strips,
        sample_transform=None if augment.where == "device" else augment,
        workers=cell.workers,
        threads=torch.get_num_threads(),
        prefetch_factor=cell.prefetch_factor,
        pin_memory=cell.pin_memory,
        persistent_workers=cell.persistent_workers,
    )


def make_trainer(
    cell: Cell, model: nn.Module, loader: Loader, augment: Any, device: torch.device, precision: str
) -> Trainer:
    """The cell's trainer for this model and this open loader."""
    job = TrainJob(
        model=model,
        loader=loader,
        augment=augment if augment.where == "device" else None,
        device=device,
        precision=precision,
        options=cell.hyper["trainer"],
        epochs=cell.epochs,
        steps=cell.steps,
        channels_last=cell.channels_last,
        cuda_graphs=cell.cuda_graphs,
        synchronise=cell.synchronise,
    )
    return fetch("trainer", cell.trainer)(job)


def example_batch(request: LoadRequest) -> torch.Tensor:
    """Noise with the shape and dtype of the loader's first batch, on the device, for warm-up and capture.

    uint8 (N, H, W, 3), or float32 (N, 3, H, W) where samples are transformed in the loader.
    """
    height, width = request.manifest.image_size()
    n = min(request.batch_size, len(request.manifest.ids(request.split)))
    # a generator of its own: the cell's random numbers do not depend on it
    noise = torch.Generator(request.device).manual_seed(0)
    if request.sample_transform is not None:
        height, width = request.sample_transform.output_size(height, width)
        return torch.randn((n, 3, height, width), device=request.device, generator=noise)
    shape = (n, height, width, 3)
    return torch.randint(256, shape, dtype=torch.uint8, device=request.device, generator=noise)


def accuracy_of(
    cell: Cell, model: nn.Module, request: LoadRequest, precision: str, seed: int
) -> tuple[dict | None, float | None]:
    """(accuracy, seconds) on the evaluation split, through the same loader and augment `none`.

    (None, None) for a ceiling, whose model saw one batch only, and for a run of a few steps.
    """
    if registry.LOADERS[cell.loader].ceiling or cell.steps is not None:
        return None, None
    start = time.perf_counter()
    normalise = make_augment("none", cell, request.manifest, seed)
    split = request.manifest.info.evaluation_split
    held_out = replace(request, split=split, shuffle=False, sample_transform=None)
    with fetch("loader", cell.loader)(held_out) as loader:
        accuracy = evaluate(model, loader, normalise, request.device, precision, cell.channels_last)
    return accuracy, time.perf_counter() - start


def explain(error: Exception, cell: Cell) -> str:
    """An error as one line for the report; its traceback is in the log."""
    if isinstance(error, torch.OutOfMemoryError):
        return f"CUDA ran out of memory at batch size {cell.batch_size}: {first_line(error)}"
    return one_line(error)


def steps_table(record: Record, rows: list[dict]) -> pd.DataFrame:
    """The steps with the columns COLUMNS, which an empty table has too."""
    own = {"experiment": record.experiment, "cell_id": record.cell_id, "repeat": record.repeat}
    table = pd.DataFrame([{**own, **row} for row in rows], columns=list(COLUMNS))
    return table.astype(COLUMNS)


def peak_host_mib() -> float:
    """Largest resident set of this process so far, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10  # bytes there, KiB on Linux
