"""metrics.csv: one row an epoch."""

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpufeed.core.file_writes import whole

PLAIN = ("epoch", "steps", "images", "epoch_s", "images_per_s", "train_loss")
HELD_OUT = {"top1": "top1", "loss": "evaluation_loss"}  # key of an accuracy -> column, which may be empty
COLUMNS = (*PLAIN, *HELD_OUT.values())


def metrics(entry: Mapping) -> dict[str, float | int | None]:
    """The columns of an epoch from its entry in the `epochs` of a record."""
    accuracy = entry["accuracy"] or {}
    held_out = {column: accuracy.get(key) for key, column in HELD_OUT.items()}
    return {key: entry[key] for key in PLAIN} | held_out


def write_metrics(path: str | Path, entries: Iterable[Mapping]) -> None:
    """Writes the whole file, or nothing at all."""
    with whole(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(map(metrics, entries))
