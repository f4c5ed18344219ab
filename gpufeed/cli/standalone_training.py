"""One training that no workflow started: from the composed command line to a folder with the model in it."""

import logging
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from gpufeed.benchmarks.result_envelope import envelope
from gpufeed.benchmarks.saved_models.model_file import save
from gpufeed.benchmarks.saved_models.train_model import learned
from gpufeed.core import compose
from gpufeed.core.cells import Cell, copied, without_later
from gpufeed.core.compose import Composed, cell_from, shipped
from gpufeed.core.document import now
from gpufeed.core.errors import GpufeedError
from gpufeed.core.record import MODEL
from gpufeed.core.registry import LOADERS, fetch
from gpufeed.core.retry_policy import planning_node
from gpufeed.tracking.epoch_tracking import track_training
from gpufeed.training.cell_training import Trained, is_judged, judge, settle_process, train
from gpufeed.training.checkpoints import CHECKPOINT, CHECKPOINT_STEPS, Checkpoints
from gpufeed.training.distributed.rank_commands import check_one_task, nodes_of_job
from gpufeed.training.ensure_inputs import dataset, shelf_of, stores
from gpufeed.training.runtime_context import RuntimeContext

log = logging.getLogger("gpufeed")


def train_standalone(found: Composed, out: Path) -> None:
    """Make the cell's inputs, train it, evaluate it and keep the model in `out`.

    metrics.csv is written after each epoch; model.pt and model.json at the end, but not for a ceiling, which
    learns one batch. Raises GpufeedError for an impossible command line, and Skip for what this node lacks,
    the latter before any download.
    """
    check_one_task()
    config, started_at, place = shipped(), now(), RuntimeContext()
    cell = cell_from(found, config, count=devices_seen)
    checkpoints, shelf = checkpoints_of(cell, found.values, out), shelf_of(found.values)
    place.find(cell)
    for kind in ("loader", "augment", "model", "trainer"):
        fetch(kind, getattr(cell, kind))  # so that a missing package is reported before any download
    if cell.nodes > 1:
        nodes_of_job(cell.nodes)
    compose.write_cell(out / "cell.yaml", cell, "python -m gpufeed.train " + shlex.join(found.texts))
    resume = found.values["resume"]
    before = checkpoints.take(Path(str(resume))) if resume is not None else []
    log.info("%s on %s in %s", cell.id, place.device, place.precision)
    config = {**config, "sources": {**config["sources"], cell.dataset: found.values["data"]}}
    manifest = dataset(cell.dataset, config, shipped(), shelf)
    settle_process(None)
    given = stores(cell, manifest, shelf)
    with track_training(cell, found.values["tracking"], out, before) as watch:
        trained = train(cell, 0, manifest, given, place, None, watch.on_epoch, checkpoints, scratch=out)
        if is_judged(cell):
            trained.result.epochs[-1]["accuracy"] = accuracy(cell, trained, place)
        watch.end(trained.result.epochs)
    if LOADERS[cell.loader].ceiling:
        log.warning("no model is kept: loader %s repeats one batch", cell.loader)
    else:
        keep(cell, trained, place, started_at, out)
    if checkpoints is not None:
        checkpoints.remove()


def checkpoints_of(cell: Cell, values: Mapping[str, Any], out: Path) -> Checkpoints | None:
    """Return the checkpoints in `out`; None without `checkpoint_steps` and `resume`.

    Raises GpufeedError if the folder to resume has no checkpoint, or one of another training.
    """
    every, folder = values["checkpoint_steps"], values["resume"]
    if every is None and folder is None:
        return None
    if cell.trainer == "fastai":
        raise GpufeedError(
            "checkpoint_steps or resume with trainer fastai",
            "trainer plain or lightning: fastai keeps no checkpoints",
            "choose one of them, or leave both out",
        )
    if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
        raise GpufeedError(f"checkpoint_steps {every!r}", "a number of 1 or more", "correct checkpoint_steps")
    if folder is not None:
        check_resumable(cell, Path(str(folder)))
    return Checkpoints(out, every or CHECKPOINT_STEPS, cell.id, required=folder is not None)


def check_resumable(cell: Cell, folder: Path) -> None:
    """Raise GpufeedError unless the folder holds a checkpoint of a training of the same cell."""
    if not (folder / CHECKPOINT).exists():
        raise GpufeedError(
            f"no {CHECKPOINT} in {folder}",
            "the run folder of a training with checkpoint_steps that did not come to its end",
            "name another folder, or leave resume out to train from the start",
        )
    before, ours = compose.read_cell(folder / "cell.yaml"), cell.asdict()
    for key, value in ours.items():
        # a field that is newer than the checkpoint has its old value
        old, new = (without_later({key: copied(one[key])}) for one in (before, ours))
        if old != new and key != "overrides":
            raise GpufeedError(
                f"{key} {value!r}, to go on with a training in {folder} that has {before[key]!r}",
                "the same cell",
                f"give the command at the top of {folder / 'cell.yaml'}, and resume={folder}",
            )


def devices_seen(device: str) -> int:
    """Return the number of GPUs that this process sees; 1 for other devices."""
    return max(1, torch.cuda.device_count()) if device in ("auto", "cuda") else 1


def accuracy(cell: Cell, trained: Trained, place: RuntimeContext) -> dict[str, Any]:
    """Return the accuracy on the evaluation split, and log it."""
    found = judge(cell, trained.model, trained.request, place.precision).accuracy()
    log.info("held out: top-1 %.4f, loss %.4f", found["top1"], found["loss"])
    return found


def keep(cell: Cell, trained: Trained, place: RuntimeContext, started_at: str, out: Path) -> None:
    """Write model.pt, which python -m gpufeed.predict reads, and model.json."""
    about = envelope(cell, place.device, started_at, "done", None, planning_node(), attempt=1) | learned(
        cell, trained, place
    )
    save(about, trained.model, out / "model.pt")
    MODEL.write(about, out / "model.json")
    log.info("python -m gpufeed.predict %s IMAGE... asks the model", shlex.quote(str(out / "model.pt")))
