"""Trains a cell once for its model, like repeat 0 of a measurement but without timing."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from gpufeed.benchmarks.cell_document import cell_document
from gpufeed.benchmarks.saved_models.model_file import save
from gpufeed.core.cells import Cell
from gpufeed.core.record import MODEL
from gpufeed.training.cell_training import Trained, train
from gpufeed.training.checkpoints import Checkpoints, remove_if_done, resumable
from gpufeed.training.runtime_context import RuntimeContext, Stores, mean_and_std

REPEAT = 0  # whose seed is used
OF_EPOCH = ("epoch", "steps", "images", "train_loss")
UNLEARNED = {**dict.fromkeys(("resolved", "dataset", "input", "classes")), "epochs": []}


@dataclass(frozen=True)
class Attempt:
    """The result of a training: the fields of model.schema.yaml, and the model if there is one."""

    about: dict[str, Any]
    model: nn.Module | None


def train_model(
    cell: dict,
    manifest: str | Path,
    stores: Stores,
    gate: str | Path | None,
    planned_on: str,
    checkpoints: Checkpoints | None = None,
    scratch: Path | None = None,
    **asked: Any,
) -> Attempt:
    """Train a cell (Cell.asdict). planned_on, asked: as in cell_document.

    gate: the verdict on the cell's loader, without which nothing runs. checkpoints: from which a killed
    training resumes; the caller removes them. Trainer fastai has none, and starts again. scratch: as in
    measure.
    """
    models: list[nn.Module] = []

    def work(cell: Cell, place: RuntimeContext) -> dict[str, Any]:
        given = (Path(manifest), stores, place, gate and Path(gate))
        trained = train(cell, REPEAT, *given, checkpoints=checkpoints, scratch=scratch)
        models.append(trained.model)
        return learned(cell, trained, place)

    about = cell_document(cell, work, UNLEARNED, planned_on, **asked)
    return Attempt(about, models[0] if about["status"] == "done" else None)


def learned(cell: Cell, trained: Trained, place: RuntimeContext) -> dict[str, Any]:
    """Return the fields that a finished training adds to its document."""
    info = trained.request.manifest.info
    mean, std = mean_and_std(cell, trained.request.manifest)
    height, width = trained.request.image_size
    return {
        "resolved": place.resolved(),
        "dataset": info.dataset,
        "input": {"height": height, "width": width, "channels": 3, "mean": list(mean), "std": list(std)},
        "classes": list(info.classes),
        "epochs": [{key: epoch[key] for key in OF_EPOCH} for epoch in trained.result.epochs],
    }


def for_job(job: Any) -> None:
    """Run rule train_model: write the weights, then their document. job: a gpufeed.job.Job."""
    job.take_gpus(job.cell["devices"], job.cell["device"])
    with resumable(Path(job.output.model).parent, job.wildcards.cell, job.params.code) as checkpoints:
        asked = {"checkpoints": checkpoints, "scratch": job.scratch, **job.common_arguments}
        found = train_model(job.cell, job.input.manifest, job.stores, job.gate, **asked)
        save(found.about, found.model, job.output.model)
        job.write_document(found.about, job.output.about, MODEL.write, f"model of {job.wildcards.cell}")
    remove_if_done(checkpoints, found.about["status"])
