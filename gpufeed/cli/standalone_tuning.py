"""One tuning that no workflow started: from the composed command line to the lines to paste."""

from pathlib import Path

from gpufeed.advice.tuner import table, tune
from gpufeed.cli.standalone_training import devices_seen
from gpufeed.core.cells import Cell, tunable, untunable
from gpufeed.core.compose import Composed, cell_from, shipped
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.record import TUNED
from gpufeed.core.registry import LOADERS, fetch
from gpufeed.core.retry_policy import planning_node
from gpufeed.training.ensure_inputs import dataset, shelf_of, stores
from gpufeed.training.runtime_context import RuntimeContext, Stores


def tune_standalone(found: Composed, out: Path) -> None:
    """Make the cell's inputs, tune its loader, print the table and the lines, and write tuned.json to `out`.

    Raises GpufeedError for what cannot be tuned and Skip for what this node lacks, before any download if
    that is known.
    """
    cell, manifest, given = provided(found)
    tuning = tune(cell.asdict(), manifest, given, planning_node())
    TUNED.write(tuning, out / "tuned.json")
    if tuning["status"] == "skipped":
        raise Skip(tuning["sentence"])
    if tuning["status"] == "failed":
        raise GpufeedError(tuning["sentence"], "a tuning that comes to its end", "see the log above it")
    print(table(tuning))


def provided(found: Composed) -> tuple[Cell, Path, Stores]:
    """Return the cell of a command line, its manifest and its stores; make those that are missing."""
    config = shipped()
    cell = cell_from(found, config, count=devices_seen)
    if reason := untunable(cell):
        some = ", ".join(filter(tunable, LOADERS))
        expected = f"trainer=plain, one device, and a loader of {some}"
        raise GpufeedError(reason, expected, "correct it on the command line")
    RuntimeContext().find(cell)
    for kind in ("loader", "augment", "model"):
        fetch(kind, getattr(cell, kind))
    shelf = shelf_of(found.values)
    config = {**config, "sources": {**config["sources"], cell.dataset: found.values["data"]}}
    manifest = dataset(cell.dataset, config, shipped(), shelf)
    return cell, manifest, stores(cell, manifest, shelf)
