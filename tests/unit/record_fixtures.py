"""Hand-made records: schema-valid, written by Record itself, with numbers that a test can reckon with."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from gpufeed.analysis.records import STEP_COLUMNS
from gpufeed.experiment import Cell
from gpufeed.record import Record

H200 = "NVIDIA H200"
CPU = "Imaginary CPU 3.0"


def cell(loader: str = "dataloader_sync", experiment: str = "pipelining", **axes) -> Cell:
    return Cell(experiment=experiment, dataset="synthetic_224", loader=loader, **axes)


def environment(gpu: str | None = H200, torch: str = "2.10.0", cores: int = 16) -> dict:
    card = {
        "name": gpu,
        "uuid": None,
        "memory_gib": 139.8,
        "compute_capability": "9.0",
        "sm_clock_mhz": 1980,
        "power_limit_w": 700.0,
        "multiprocessors": 132,
    }
    return {
        "node": "node-a",
        "os": "Linux",
        "python": "3.11.9",
        "cpu": CPU,
        "cores_allowed": cores,
        "memory_gib": 128.0,
        "gpu": card if gpu else None,
        "driver": "580.1" if gpu else None,
        "stack": "cuda12",
        "versions": {"torch": torch, "numpy": "2.3.0"},
        "commit": "0123456789abcdef",
        "dirty": False,
    }


def _constant(value: float) -> dict:
    return dict.fromkeys(("median", "mean", "p05", "p95", "min", "max"), value) | {"std": 0.0}


def record(
    of: Cell,
    repeat: int = 0,
    images_per_s: float = 1000.0,
    wait_share: float = 0.25,
    gpu: str | None = H200,
    torch: str = "2.10.0",
    epochs: int = 1,
    top1: float | None = None,
) -> Record:
    """A finished repeat; a step takes batch_size / images_per_s, wait_share of it wait."""
    total = of.batch_size / images_per_s * 1e3
    wait = total * wait_share
    times = {"load_ms": 0.8 * wait, "transfer_ms": 0.2 * wait, "train_ms": total - wait}
    times |= {"total_ms": total, "wait_ms": wait}
    images = 20 * of.batch_size
    seconds = images / images_per_s
    accuracy = {"split": "val", "images": 100, "correct": round(100 * (top1 or 0)), "top1": top1, "loss": 1.0}
    return Record(
        experiment=of.experiment,
        cell_id=of.id,
        repeat=repeat,
        status="done",
        planned_on="node-a",
        started_at="2026-01-02T03:04:05+00:00",
        finished_at="2026-01-02T03:05:05+00:00",
        cell=of.asdict(),
        environment=environment(gpu, torch),
        resolved={"device": "cuda" if gpu else "cpu", "precision": "bf16" if gpu else "fp32"},
        phases={"start_to_ready_s": 3.0, "setup_s": 1.0, "first_batch_s": 0.5, "evaluation_s": None},
        warmup={"steps": 3, "policy": "the first 3 steps"},
        steps={"n": 17} | {name: _constant(value) for name, value in times.items()},
        epochs=[
            {
                "epoch": epoch,
                "steps": 20,
                "images": images,
                "epoch_s": seconds,
                "images_per_s": images_per_s,
                "train_loss": 2.0 / (epoch + 1),
            }
            for epoch in range(epochs)
        ],
        throughput={
            "images": images,
            "seconds": seconds,
            "images_per_s": images_per_s,
            "wait_share": wait_share,
        },
        accuracy=accuracy if top1 is not None else None,
        memory={"peak_gpu_mib": 900.0 if gpu else None, "peak_host_mib": 1500.0},
    )


def unfinished(of: Cell, status: str, sentence: str, repeat: int = 0, gpu: str | None = None) -> Record:
    """A skipped or failed repeat."""
    done = record(of, repeat, gpu=gpu)
    nothing = dict.fromkeys(
        ("resolved", "phases", "warmup", "steps", "throughput", "accuracy", "memory"), None
    )
    return replace(done, status=status, sentence=sentence, epochs=[], **nothing)


def steps(of: Record, count: int = 20) -> pd.DataFrame:
    """The step table of a record; empty where it is not done."""
    if of.status != "done":
        return pd.DataFrame(columns=STEP_COLUMNS)
    table = pd.DataFrame({"epoch": 0, "step": np.arange(count), "images": of.cell["batch_size"]})
    table = table.assign(experiment=of.experiment, cell_id=of.cell_id, repeat=of.repeat, loss=1.0)
    for name in ("load_ms", "transfer_ms", "train_ms", "total_ms", "wait_ms"):
        table[name] = of.steps[name]["mean"] + np.arange(count) * 0.01
    return table[STEP_COLUMNS]


def write(results: Path, *written: Record) -> list[Path]:
    """Writes records and step tables where the workflow puts them; returns the records' paths."""
    paths = []
    for one in written:
        path = results / "records" / one.experiment / one.cell_id / f"{one.repeat}.json"
        one.write(path)
        steps(one).to_parquet(path.with_name(f"{one.repeat}.steps.parquet"))
        paths.append(path)
    return paths


def write_speeds(results: Path, of: Cell, speeds, **kwargs) -> list[Path]:
    """One finished repeat for each speed (images/s)."""
    return write(results, *(record(of, repeat, speed, **kwargs) for repeat, speed in enumerate(speeds)))


def write_pipelining(results: Path, gpu: str | None = H200) -> dict[str, list[str]]:
    """A whole `pipelining` experiment; returns the plan's {experiment: cell ids}."""
    common = {"augment": "cpu", "batch_size": 32}
    sweep = {0: 1500, 1: 1400, 2: 2700, 4: 5000, 8: 5050, 16: 4800}
    ids = []

    def add(of: Cell, speed: float, **kwargs):
        write_speeds(results, of, [speed * 0.99, speed, speed * 1.01], gpu=gpu, **kwargs)
        ids.append(of.id)

    for workers, speed in sweep.items():
        loader = "dataloader_workers" if workers else "dataloader_sync"
        free = {"workers": workers, "prefetch_factor": 2 if workers else None, "steps": 320}
        add(cell(loader, **free, **common), speed, wait_share=0.9 - 0.1 * workers**0.5)
        add(cell("overlap", **free, **common), speed * 1.1, wait_share=0.85 - 0.1 * workers**0.5)
        if workers in (0, 2):
            noted = {**free, "steps": 20, "synchronise": "step"}
            add(cell(loader, **noted, **common), speed * 0.8, wait_share=0.5)
    four = {"workers": 4, "steps": 320, **common}
    for prefetch in (1, 4, 8):
        add(
            cell("dataloader_workers", prefetch_factor=prefetch, **four), 4700 + 50 * prefetch, wait_share=0.7
        )
    add(cell("dataloader_workers", prefetch_factor=2, pin_memory=False, **four), 4100, wait_share=0.75)
    add(cell("dataloader_workers", prefetch_factor=2, persistent_workers=True, **four), 5400, wait_share=0.6)
    add(cell("replay", steps=320, **common), 21000, wait_share=0.01)
    on_device = {"augment": "torch", "batch_size": 32, "steps": 320}
    add(cell("resident", **on_device), 19000, wait_share=0.05)
    add(cell("replay", **on_device), 20500, wait_share=0.01)
    return {"pipelining": ids}


def plan_info(cells: dict[str, list[str]], repeats: int = 3) -> dict:
    return {
        "experiments": {
            name: {
                "title": f"Title of {name}",
                "question": f"Question of {name}?",
                "repeats": repeats,
                "cells": ids,
            }
            for name, ids in cells.items()
        },
        "left_out": [
            {
                "experiment": "pipelining",
                "sentence": "replay has no worker processes, so workers must be 0",
                "combinations": 5,
            }
        ],
        "command": "snakemake --cores 8 --resources gpu=1",
    }
