"""One training that no workflow started: from the composed command line to a folder with the model in it."""

import logging
import shlex
from pathlib import Path
from typing import Any

import torch

from gpufeed import cell_file
from gpufeed.compose import Composed, cell_from, shipped
from gpufeed.document import now
from gpufeed.errors import GpufeedError
from gpufeed.experiment import Cell
from gpufeed.node import node_name
from gpufeed.provide import Shelf, dataset, stores
from gpufeed.tracking.metrics import write_metrics
from gpufeed.trained.heading import heading
from gpufeed.trained.model_file import save
from gpufeed.trained.record import MODEL
from gpufeed.trained.train import learned
from gpufeed.training import Place, Trained, is_judged, judge, settle_process, train

log = logging.getLogger("gpufeed")


def train_by_hand(found: Composed, out: Path) -> None:
    """Provides what the cell reads, trains it, asks it about the evaluation split and keeps it in `out`.

    metrics.csv is written after each epoch; model.pt and model.json at the end. Raises GpufeedError for what
    cannot be meant and Skip for what this node lacks, the latter before anything is downloaded.
    """
    config, started_at, place = shipped(), now(), Place()
    cell = cell_from(found, config, count=devices_seen)
    if getattr(cell, "devices", 1) > 1:
        raise GpufeedError(
            f"trainer.devices {cell.devices}", "1 in a training by hand", "write trainer.devices=1"
        )
    place.find(cell)
    cell_file.write(out / "cell.yaml", cell, "python -m gpufeed.train " + shlex.join(found.texts))
    log.info("%s on %s in %s", cell.id, place.device, place.precision)
    config = {**config, "sources": {**config["sources"], cell.dataset: found.values["data"]}}
    shelf = shelf_of(found.values)
    manifest = dataset(cell.dataset, config, shipped(), shelf)
    settle_process(None)
    entries: list[dict] = []

    def on_epoch(entry: dict) -> None:
        entries.append(entry)
        write_metrics(out / "metrics.csv", entries)

    trained = train(cell, 0, manifest, stores(cell, manifest, shelf), place, gate=None, on_epoch=on_epoch)
    if is_judged(cell):
        trained.result.epochs[-1]["accuracy"] = accuracy(cell, trained, place)
    write_metrics(out / "metrics.csv", trained.result.epochs)
    keep(cell, trained, place, started_at, out)


def devices_seen(device: str) -> int:
    """GPUs that this process sees; 1 where it trains on something else."""
    return max(1, torch.cuda.device_count()) if device in ("auto", "cuda") else 1


def shelf_of(values: dict[str, Any]) -> Shelf:
    """Where the command line wants datasets to be."""
    archives = tuple(Path(folder) for folder in values["archives"])
    return Shelf(
        Path(values["data_folder"]), archives, values["cache_decoder"], values["max_quarantined_share"]
    )


def accuracy(cell: Cell, trained: Trained, place: Place) -> dict[str, Any]:
    """That of the evaluation split, which it also logs."""
    found = judge(cell, trained.model, trained.request, place.precision).accuracy()
    log.info("held out: top-1 %.4f, loss %.4f", found["top1"], found["loss"])
    return found


def keep(cell: Cell, trained: Trained, place: Place, started_at: str, out: Path) -> None:
    """Writes model.pt, which python -m gpufeed.predict reads, and model.json."""
    about = heading(cell, place, started_at, "done", None, node_name(), attempt=1) | learned(trained, place)
    save(about, trained.model, out / "model.pt")
    MODEL.write(about, out / "model.json")
    log.info("python -m gpufeed.predict %s IMAGE... asks the model", out / "model.pt")
