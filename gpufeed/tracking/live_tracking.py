"""A training that is watched while it runs: metrics.csv after each epoch, and a run for W&B if asked for."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpufeed.core.cells import Cell
from gpufeed.tracking.metrics_file import metrics, write_metrics
from gpufeed.tracking.wandb_run import Run


class Watch:
    """Takes the epochs of a training as they end.

    folder: where metrics.csv is written. before: the epochs of the training that this one goes on with.
    """

    def __init__(self, folder: Path, run: Run | None, before: Iterable[Mapping] = ()):
        self.path, self.run = folder / "metrics.csv", run
        self.entries = list(before)
        if self.entries:
            write_metrics(self.path, self.entries)
        self.summary: dict[str, Any] | None = None  # None until the training has come to its end

    def on_epoch(self, entry: Mapping) -> None:
        """As TrainJob.on_epoch."""
        self.entries.append(entry)
        write_metrics(self.path, self.entries)
        if self.run is not None:
            self.run.log(metrics(entry))

    def end(self, entries: Iterable[Mapping]) -> None:
        """All epochs, the accuracy of the last one and those before a resume with them."""
        self.entries = list(entries)
        write_metrics(self.path, self.entries)
        self.summary = {key: value for key, value in metrics(self.entries[-1]).items() if value is not None}


@contextmanager
def watched(
    cell: Cell, tracking: Mapping[str, Any], folder: Path, before: Iterable[Mapping] = ()
) -> Iterator[Watch]:
    """A Watch whose run ends with the block, as failed where the block raises.

    tracking: as in the config. before: as in Watch; they are no news to a run.
    """
    run = None
    if tracking["wandb"]:
        place = (folder, tracking["project"], tracking["mode"])
        run = Run(
            *place, f"{cell.id}-{folder.name}", group=cell.id, job_type=cell.experiment, config=cell.asdict()
        )
    watch = Watch(folder, run, before)
    try:
        yield watch
    finally:
        if run is not None:
            run.finish(watch.summary or {}, ok=watch.summary is not None)
