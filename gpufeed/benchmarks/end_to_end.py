"""Measures one repeat of one cell: trains it, and writes the results into a record."""

import itertools
import resource
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import torch._dynamo  # noqa: F401 (takes seconds; imported here so that it counts as import)

from gpufeed.benchmarks.cell_document import cell_document
from gpufeed.core.cells import Cell
from gpufeed.core.file_writes import whole
from gpufeed.core.plan_side_by_side import block_of, words
from gpufeed.core.record import RECORD_VERSION, Record
from gpufeed.core.registry import store_in
from gpufeed.loaders.base import LoadRequest
from gpufeed.stores.cache_format import CacheInfo
from gpufeed.system import gpu_locks
from gpufeed.system.environment import filesystem
from gpufeed.system.telemetry import wanted
from gpufeed.system.timing import STEP_COLUMNS, step_statistics, throughput, warmup
from gpufeed.training.batch_printing import printed
from gpufeed.training.cell_training import Trained, is_judged, judge, train
from gpufeed.training.checkpoints import Checkpoints, remove_if_done, resumable
from gpufeed.training.engines.base import TrainResult
from gpufeed.training.recorder import epoch_entry
from gpufeed.training.runtime_context import RuntimeContext, Stores

COLUMNS = {"experiment": "string", "cell_id": "string", "repeat": "int64", **STEP_COLUMNS}
OF_ONE_PROCESS = ("warmup", "steps", "throughput", "telemetry")  # null in the record of a resumed repeat
SHOWN = 20  # quarantined files in a record; the log of prepare_dataset has all


def measure(
    cell: dict,
    repeat: int,
    manifest: Path,
    cache: Path | None,
    planned_on: str,
    attempt: int = 1,
    threads: int | None = None,
    gate: Path | None = None,
    telemetry: bool = True,
    began_s: float | None = None,
    least_s: float = 0.0,
    scratch: Path | None = None,
    checkpoints: Checkpoints | None = None,
    tuning: Path | None = None,
    **built: Path | None,
) -> tuple[Record, pd.DataFrame]:
    """Run one repeat of a cell (Cell.asdict) and return its record and its steps.

    threads: what torch may use on the CPU, limited to the cores allowed; None leaves torch's choice. gate:
    the verdict on the cell's loader, without which nothing runs; None for a ceiling. cache, built: stores, by
    their names in Stores. telemetry: whether to watch power, memory and so on. began_s: time.time() at the
    top of the calling program, so that imports count separately; None if unknown. least_s: the minimum
    seconds of steady state, beyond the planned end if needed. scratch: a folder that all nodes see, for a
    cell on several. checkpoints: from which a killed training resumes; the caller removes them. With them,
    the training ends as planned whatever least_s is. tuning: of the cell, whose settings it then has; None if
    the cell has its settings.

    If the node lacks something, the status is `skipped`; an error gives `failed`. Both have a sentence, and
    the steps (columns COLUMNS) are empty. An interrupt or SIGTERM leaves no record.
    """
    called, starts = time.perf_counter(), start_up(began_s)
    stores = Stores(**{name: path and Path(path) for name, path in {"cache": cache, **built}.items()})
    asked = {"telemetry": telemetry, "least_s": least_s, "scratch": scratch}
    if checkpoints is not None:
        asked |= {"checkpoints": checkpoints, "least_s": 0.0}
    rows: list[dict] = []

    def work(cell: Cell, place: RuntimeContext) -> dict[str, Any]:
        tuned = place.tune(cell, tuning)
        fields, steps = run(tuned, repeat, Path(manifest), stores, place, gate, starts, asked)
        rows.extend(steps)
        return fields

    nothing = {"schema_version": RECORD_VERSION, "repeat": repeat}
    record = Record(**cell_document(cell, work, nothing, planned_on, attempt, threads))
    if record.phases is not None:
        record.phases["wall_s"] = starts["start_to_ready_s"] + time.perf_counter() - called
    return record, steps_table(record, rows)


def start_up(began_s: float | None) -> dict[str, float]:
    """Return the `phases` of a record so far: start_to_ready_s and, if began_s is known, its two parts.

    began_s: as in measure. The start of the process is known to about 10 ms, a tick of the kernel's clock.
    Waiting for a GPU is not included.
    """
    born_s, now_s = psutil.Process().create_time(), time.time()
    ready_s = max(0.0, now_s - born_s - gpu_locks.waited_s())
    if began_s is None:
        return {"start_to_ready_s": ready_s}
    start_s = min(ready_s, max(0.0, began_s - born_s))
    return {"start_to_ready_s": ready_s, "start_s": start_s, "import_s": ready_s - start_s}


def run(
    cell: Cell,
    repeat: int,
    manifest: Path,
    stores: Stores,
    place: RuntimeContext,
    gate: Path | None,
    starts: dict[str, float],
    asked: dict[str, Any],
) -> tuple[dict[str, Any], list[dict]]:
    """Set a cell up, train and evaluate it; return the fields of its record and its steps.

    starts: the phases of the record so far (see start_up). asked: telemetry, least_s, scratch and
    checkpoints, as in train. Raises Skip or the error that stops the cell.
    """
    trained = train(cell, repeat, manifest, stores, place, gate, **asked)
    memory = {"peak_gpu_mib": trained.peak_gpu_mib, "peak_host_mib": peak_host_mib()}
    accuracy, evaluation_s = accuracy_of(cell, trained, place.precision)
    phases = {
        **starts,
        **trained.spent,
        "setup_s": trained.setup_s,
        "first_batch_s": trained.result.first_batch_s,
        "evaluation_s": evaluation_s,
    }
    fields = {
        "resolved": place.resolved(),
        "phases": phases,
        "memory": memory,
        "accuracy": accuracy,
        "dataset": dataset_facts(trained.request, stores),
        "loading": trained.loading,
        "telemetry": trained.telemetry,
        **statistics(trained.result, trained.batches, trained.request.ahead),
        "epochs": epochs_as_planned(cell, trained.result),
    }
    if trained.result.resumed:
        fields |= {"resumed": trained.result.resumed, **dict.fromkeys(OF_ONE_PROCESS)}
    return fields, trained.result.steps


def dataset_facts(request: LoadRequest, stores: Stores) -> dict[str, Any]:
    """Return the field `dataset` of a record."""
    manifest, (height, width) = request.manifest, request.image_size
    broken = manifest.info.quarantined
    store = store_in(stores)
    return {
        "samples": len(manifest),
        "classes": len(manifest.info.classes),
        "height": height,
        "width": width,
        "quarantined": len(broken),
        "examples": broken[:SHOWN],
        "cache": CacheInfo.read(stores.cache).decoder_version if stores.cache else None,
        "filesystem": filesystem(store[1] if store else manifest.files_root()),
    }


def statistics(result: TrainResult, batches_in_epoch: int, ahead: int = 0) -> dict[str, Any]:
    """Return the fields warmup, steps and throughput of a record."""
    left_out = warmup(result.epochs, batches_in_epoch, ahead)
    counted = result.steps[left_out["steps"] :]
    return {
        "warmup": left_out,
        "steps": step_statistics(counted),
        "throughput": throughput(counted),
    }


def epochs_as_planned(cell: Cell, result: TrainResult) -> list[dict]:
    """Return the field `epochs` of a record, without training beyond the planned end.

    With `steps`, the last epoch may be incomplete.
    """
    if cell.steps is None:
        return result.epochs[: cell.epochs]
    of_epoch = itertools.groupby(result.steps[: cell.steps], key=lambda row: row["epoch"])
    return [epoch_entry(epoch, list(rows)) for epoch, rows in of_epoch]


def accuracy_of(cell: Cell, trained: Trained, precision: str) -> tuple[dict | None, float | None]:
    """Return (accuracy, seconds) on the evaluation split, through the same loader and augment `none`.

    The accuracy is also added to the last planned epoch. (None, None) if the cell is not evaluated.
    """
    if not is_judged(cell):
        return None, None
    start = time.perf_counter()
    accuracy = judge(cell, trained.model, trained.request, precision).accuracy()
    trained.result.epochs[cell.epochs - 1]["accuracy"] = accuracy
    return accuracy, time.perf_counter() - start


def steps_table(record: Record, rows: list[dict]) -> pd.DataFrame:
    """Return the steps with the columns COLUMNS, also if there are none."""
    own = {"experiment": record.experiment, "cell_id": record.cell_id, "repeat": record.repeat}
    table = pd.DataFrame([{**own, **row} for row in rows], columns=list(COLUMNS))
    return table.astype(COLUMNS)


def peak_host_mib() -> float:
    """Return the largest resident set of this process so far, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10  # bytes on macOS, KiB on Linux


def for_job(job: Any) -> Record:
    """Run rule measure_cell, and return the record. job: a gpufeed.job.Job.

    The steps are written first, so that a record implies both.
    """
    job.take_gpus(job.cell["devices"], job.cell["device"])
    results, name = Path(job.config["results"]), job.wildcards
    place = (name.experiment, name.cell, name.repeat)
    # from the config, not from params: neither this nor telemetry changes the measurement
    resumes = job.config["experiments"][name.experiment].get("resume", False)
    block = block_of(job.config, name.experiment, job.cell)
    shown = printed(f"{words(block)}, repeat {job.params.repeat + 1}") if block else nullcontext()
    kept = resumable(results.joinpath("checkpoints", *place), *place, job.params.code)
    with kept if resumes else nullcontext() as checkpoints, shown:
        record, steps = measure(
            job.cell,
            job.params.repeat,
            job.input.manifest,
            gate=job.gate,
            least_s=job.params.least_s,
            scratch=job.scratch,
            telemetry=wanted(job.config["telemetry"]),
            began_s=job.began_s,
            checkpoints=checkpoints,
            tuning=job.tuning,
            **vars(job.stores),
            **job.common_arguments,
        )
        with whole(job.output.steps) as partial:
            steps.to_parquet(partial, index=False)
        job.write_document(record, job.output.record, what=f"{record.cell_id} repeat {record.repeat}")
    if checkpoints is not None:
        remove_if_done(checkpoints, record.status)
    return record
