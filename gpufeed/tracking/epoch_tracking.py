"""Metrics of each epoch: one row each in a CSV file, and a Weights & Biases run if asked for.

A standalone training writes them after each epoch. A measured repeat writes them after its record, off every
clock.
"""

import csv
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpufeed.core.cells import Cell
from gpufeed.core.errors import GpufeedError, one_line
from gpufeed.core.file_writes import whole
from gpufeed.core.record import Record
from gpufeed.tracking.wandb_run import Run

log = logging.getLogger("gpufeed")
PLAIN_COLUMNS = ("epoch", "steps", "images", "epoch_s", "images_per_s", "train_loss")
HELD_OUT = {"top1": "top1", "loss": "evaluation_loss"}  # key of `accuracy` -> column, which may be empty
COLUMNS = (*PLAIN_COLUMNS, *HELD_OUT.values())


def epoch_metrics(entry: Mapping) -> dict[str, float | int | None]:
    """Return the columns of an epoch from its entry in the `epochs` of a record."""
    accuracy = entry["accuracy"] or {}
    held_out = {column: accuracy.get(key) for key, column in HELD_OUT.items()}
    return {key: entry[key] for key in PLAIN_COLUMNS} | held_out


def write_metrics(path: str | Path, entries: Iterable[Mapping]) -> None:
    """Write the file, whole or not at all."""
    with whole(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(map(epoch_metrics, entries))


class Tracker:
    """Tracks the epochs of a training as they end.

    folder: of metrics.csv. before: the epochs of the training that this one resumes.
    """

    def __init__(self, folder: Path, run: Run | None, before: Iterable[Mapping] = ()):
        self.path, self.run = folder / "metrics.csv", run
        self.entries = list(before)
        if self.entries:
            write_metrics(self.path, self.entries)
        self.summary: dict[str, Any] | None = None  # None until the training has ended

    def on_epoch(self, entry: Mapping) -> None:
        """Handle an epoch as TrainJob.on_epoch does."""
        self.entries.append(entry)
        write_metrics(self.path, self.entries)
        if self.run is not None:
            self.run.log(epoch_metrics(entry))

    def end(self, entries: Iterable[Mapping]) -> None:
        """Write all epochs, with the accuracy of the last one and those before a resume."""
        self.entries = list(entries)
        write_metrics(self.path, self.entries)
        self.summary = {
            key: value for key, value in epoch_metrics(self.entries[-1]).items() if value is not None
        }


@contextmanager
def track_training(
    cell: Cell, tracking: Mapping[str, Any], folder: Path, before: Iterable[Mapping] = ()
) -> Iterator[Tracker]:
    """Yield a Tracker whose run ends with the block, as failed if the block raises.

    tracking: as in the config. before: as in Tracker; they are not sent to a run again.
    """
    run = None
    if tracking["wandb"]:
        place = (folder, tracking["project"], tracking["mode"])
        run = Run(
            *place, f"{cell.id}-{folder.name}", group=cell.id, job_type=cell.experiment, config=cell.asdict()
        )
    watch = Tracker(folder, run, before)
    try:
        yield watch
    finally:
        if run is not None:
            run.finish(watch.summary or {}, ok=watch.summary is not None)


def track_repeat(record: Record, tracking: Mapping[str, Any], results: str | Path, repeat: str = "") -> None:
    """Write tracking/EXPERIMENT/CELL/REPEAT-ATTEMPT.csv below `results` and, if asked for, a W&B run.

    tracking: the key of the config. repeat: the name of the record's file, if it is not its number. Never
    raises: the record stays valid.
    """
    folder = Path(results) / "tracking" / record.experiment / record.cell_id
    name = f"{repeat or record.repeat}-{record.attempt}"
    try:
        if record.epochs:
            write_metrics(folder / f"{name}.csv", record.epochs)
    except (OSError, GpufeedError) as error:
        log.warning("no metrics in %s: %s", folder, one_line(error))
    if not tracking["wandb"]:
        return
    run = Run(
        results,
        tracking["project"],
        tracking["mode"],
        name=f"{record.cell_id}-{name}",
        group=record.cell_id,
        job_type=record.experiment,
        config={**record.cell, "repeat": record.repeat, "attempt": record.attempt},
    )
    for entry in record.epochs:
        run.log(epoch_metrics(entry))
    run.finish(repeat_summary(record), ok=record.status == "done")


def repeat_summary(record: Record) -> dict[str, Any]:
    """Return how the repeat ended."""
    found = {"status": record.status, "sentence": record.sentence, **(record.throughput or {})}
    found |= {"top1": record.accuracy["top1"]} if record.accuracy else {}
    return {key: value for key, value in found.items() if value is not None}
