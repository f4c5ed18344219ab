"""What is kept of a measured repeat for people to watch: after its record is written, off every clock."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpufeed.core.errors import GpufeedError, one_line
from gpufeed.core.record import Record
from gpufeed.tracking.metrics_file import metrics, write_metrics
from gpufeed.tracking.wandb_run import Run

log = logging.getLogger("gpufeed")


def track(record: Record, tracking: Mapping[str, Any], results: str | Path, repeat: str = "") -> None:
    """Writes tracking/EXPERIMENT/CELL/REPEAT-ATTEMPT.csv below `results` and, if asked to, a run for W&B.

    tracking: the key of the config. repeat: the name of the record's file, where it is not its number alone.
    Raises nothing: the record stands, whatever becomes of this.
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
        run.log(metrics(entry))
    run.finish(summary(record), ok=record.status == "done")


def summary(record: Record) -> dict[str, Any]:
    """How the repeat ended."""
    found = {"status": record.status, "sentence": record.sentence, **(record.throughput or {})}
    found |= {"top1": record.accuracy["top1"]} if record.accuracy else {}
    return {key: value for key, value in found.items() if value is not None}
