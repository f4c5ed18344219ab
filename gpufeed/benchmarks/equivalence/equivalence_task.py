"""What the gate has to judge. Standard library only, since its job starts before torch is loaded."""

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpufeed.core.compose import restored
from gpufeed.core.equivalence_verdict import loader_settings
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.loader_setting import read_tuned
from gpufeed.core.registry import LOADERS, STORES
from gpufeed.datasets.packed import bring


@dataclass(frozen=True)
class Task:
    """One loader with one setting on one dataset.

    Paths are text; settings are those of core.equivalence_verdict. reference: the cache decoded by Pillow;
    None for a recipe, whose reference is made from the files. built: what the loader reads, by LoadRequest's
    names, and the library of gpufeed.native (`extension`). device: as in the config. threads: cores that the
    loader may use, None for all.
    """

    dataset: str
    loader: str
    settings: dict
    manifest: str
    reference: str | None
    built: dict[str, str] = field(default_factory=dict)
    device: str = "auto"
    threads: int | None = None


def task_of(job: Any) -> Task:
    """Return the task of a job of rule gate, a gpufeed.job.Job."""
    return task(job, job.wildcards.dataset, job.params.loader, job.params.settings)


def task_of_tuned(job: Any) -> Task:
    """Return the task of a job of rule gate_tuned: with the tuned settings, or else the cell's own."""
    cell = restored(job.params.cell)
    with suppress(Skip, GpufeedError):  # the cell is then not measured, and gives the reason
        cell = read_tuned(job.input.tuned).of_cell(cell)
    return task(job, cell.dataset, cell.loader, loader_settings(cell))


def task(job: Any, dataset: str, loader: str, settings: dict) -> Task:
    """Return the task of a job, after unpacking a packed dataset.

    Unpacking here cannot make a loader look stuck.
    """
    if LOADERS[loader].reads_files:
        bring(Path(job.input.manifest).parent)
    return Task(
        dataset=dataset,
        loader=loader,
        settings=settings,
        manifest=job.input.manifest,
        reference=job.input.get("reference") or None,
        device=job.params.device,
        threads=job.config["cores_per_cell"],  # as in a cell, though the gate's job has reserved less
        built={name: path for name in (*STORES, "extension") if (path := job.input.get(name))},
    )
