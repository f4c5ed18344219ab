"""Measurements of models in use, row by row: what each is compared with, and the table as CSV has it."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from gpufeed.core import record

EIGHT_BIT = ("int8", "fp8")  # precisions of the arithmetic that no eager row has
COLUMNS = ("backend", "precision", "status", "sentence", "note", "bytes", "images", "top1")
DIFFERENCES = ("over_fp32", "over_bf16", "agreement")
QUANTILES = ("median", "p90", "p99")


def done(found: Mapping) -> dict[tuple[str, str], Mapping]:
    """Rows that were measured to the end, by (backend, precision)."""
    rows = found["rows"]
    return {(row["backend"], row["precision"]): row for row in rows if row["status"] == "done"}


def rival(rows: Mapping[tuple[str, str], Mapping], precision: str) -> Mapping | None:
    """The eager row that a row of this precision is compared with; None if it was not measured.

    That of the same precision; of an 8-bit one that of bf16, which the rest of such a model has on a GPU, or
    else fp32.
    """
    if precision not in EIGHT_BIT:
        return rows.get(("eager", precision))
    return rows.get(("eager", "bf16")) or rows.get(("eager", "fp32"))


def rate(row: Mapping, batch: int) -> Mapping[str, float] | None:
    """Median, min and max of a row's images a second at this batch; None if it has none."""
    return next((entry["images_per_s"] for entry in row["throughput"] if entry["batch"] == batch), None)


def batches(found: Mapping) -> list[int]:
    """Batch sizes, the smallest first."""
    return sorted(found["settings"]["batch_sizes"])


def title(found: Mapping) -> str:
    """Which model, such as `vit_tiny on tiny_imagenet`."""
    return f"{found['cell']['model']} on {found['cell']['dataset']}"


def machine(found: Mapping) -> str:
    """Where it was measured, such as `NVIDIA H200, torch 2.11.0`."""
    environment = found["environment"]
    on_gpu = found["resolved"] and found["resolved"]["device"] == "cuda" and environment["gpu"]
    return f"{on_gpu['name'] if on_gpu else environment['cpu']}, torch {environment['versions']['torch']}"


def table(paths: Iterable[str | Path]) -> pd.DataFrame:
    """One row a model, backend and precision, in the order of the paths.

    A measurement that was not made has one row with its status and sentence. Raises GpufeedError for a
    damaged one.
    """
    rows: list[dict[str, Any]] = []
    for path in paths:
        found = record.read_inference(path)
        head = {"cell_id": found["cell_id"], "model": found["cell"]["model"]}
        head |= {"dataset": found["cell"]["dataset"], "machine": machine(found)}
        if found["status"] != "done":
            rows.append({**head, "status": found["status"], "sentence": found["sentence"]})
        measured = done(found)
        for row in found["rows"]:
            rows.append({**head, **flat(row, batches(found), rival(measured, row["precision"]))})
    keys = [*head, *COLUMNS, *DIFFERENCES] if rows else ["cell_id", "model", "dataset", "machine", *COLUMNS]
    frame = pd.DataFrame(rows)
    return frame.reindex(columns=[*keys, *(name for name in frame.columns if name not in keys)])


def flat(row: Mapping, sizes: Iterable[int], eager: Mapping | None) -> dict[str, Any]:
    """A row without nesting; eager: what its rates are divided by."""
    values = {key: row[key] for key in (*COLUMNS, *DIFFERENCES)}
    for clock in ("host_ms", "device_ms"):
        times = (row["latency"] or {}).get(clock) or {}
        values |= {f"latency_{clock}_{end}": times.get(end) for end in QUANTILES}
    for batch in sizes:
        own, other = rate(row, batch), eager and rate(eager, batch)
        values |= {f"images_per_s_{batch}_{end}": own and own[end] for end in ("median", "min", "max")}
        values[f"times_eager_{batch}"] = own["median"] / other["median"] if own and other else None
    return values
