"""What the gate is asked to judge. Standard library only, since its job starts before torch is needed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpufeed.datasets.packed import bring


@dataclass(frozen=True)
class Task:
    """One loader with one setting on one dataset.

    Paths are text; settings are as core.equivalence_verdict makes them.
    reference: the cache decoded by Pillow; cache, strips, shards, beton: what the loader reads, if it does;
    extension: the library of gpufeed.native, if the loader decodes by it;
    device: as in the config; threads: cores that the loader may use, None for all.
    """

    dataset: str
    loader: str
    settings: dict
    manifest: str
    reference: str
    cache: str | None = None
    strips: str | None = None
    shards: str | None = None
    beton: str | None = None
    extension: str | None = None
    device: str = "auto"
    threads: int | None = None


def task_of(job: Any) -> Task:
    """Return the task of a job of rule gate, a gpufeed.job.Job; unpack a packed dataset first.

    Here, where no loader is taken for stuck meanwhile.
    """
    built = {
        name: job.input.get(name) or None for name in ("cache", "strips", "shards", "beton", "extension")
    }
    if built["cache"] is None and built["shards"] is None and built["beton"] is None:
        bring(Path(job.input.manifest).parent)
    return Task(
        dataset=job.wildcards.dataset,
        loader=job.wildcards.loader,
        settings=job.params.settings,
        manifest=job.input.manifest,
        reference=job.input.reference,
        device=job.params.device,
        threads=job.config["cores_per_cell"],  # as a cell's loader has, though the job has reserved less
        **built,
    )
