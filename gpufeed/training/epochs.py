"""From the marks of an epoch to its rows and its entry in the record, the same for every trainer."""

import logging
import math
from collections.abc import Mapping, Sequence

import torch

from gpufeed.core.errors import GpufeedError
from gpufeed.system.timing import StepMarks
from gpufeed.training.engines.base import TrainJob

log = logging.getLogger("gpufeed")


def summarise(
    epoch: int, marks: Sequence[StepMarks], losses: Sequence[torch.Tensor]
) -> tuple[dict, list[dict]]:
    """The entry of an epoch in the record and its rows; call after the device has passed its end.

    losses: 0-dimensional, one a step. Raises GpufeedError at the first one that is not finite.
    """
    values = torch.stack(list(losses)).float().tolist()
    rows = [mark.row(loss) for mark, loss in zip(marks, values, strict=True)]
    check_losses(rows)
    return entry_of(epoch, rows), rows


def entry_of(epoch: int, rows: Sequence[Mapping]) -> dict:
    """The entry of an epoch in the record, from all of its rows: their totals follow one on another."""
    images, epoch_s = sum(row["images"] for row in rows), sum(row["total_ms"] for row in rows) / 1e3
    return {
        "epoch": epoch,
        "steps": len(rows),
        "images": images,
        "epoch_s": epoch_s,
        "images_per_s": images / epoch_s,
        "train_loss": sum(row["loss"] * row["images"] for row in rows) / images,
        "accuracy": None,
    }


def log_epoch(entry: dict) -> None:
    log.info(
        "epoch %d: %d steps, %.2f s, %.0f images/s, loss %.4f",
        *(entry[key] for key in ("epoch", "steps", "epoch_s", "images_per_s", "train_loss")),
    )


def check_images(job: TrainJob, epoch: int, images: int, run_is_over: bool) -> None:
    """Raises GpufeedError if an epoch lost or repeated samples of this rank.

    images: how many came. run_is_over: a run of `steps` may end before its epoch does.
    """
    expected = job.loader.share
    cut_short = job.steps is not None and run_is_over
    if images == expected or (cut_short and 0 < images < expected):
        return
    raise GpufeedError(
        f"{images} images from {type(job.loader).__name__} in epoch {epoch}",
        f"{expected}, each sample once",
        "choose another loader and report this one",
    )


def check_losses(rows: list[dict]) -> None:
    """Raises GpufeedError at the first loss that is not finite."""
    for row in rows:
        if not math.isfinite(row["loss"]):
            raise GpufeedError(
                f"training loss {row['loss']} at step {row['step']} (epoch {row['epoch']})",
                "a finite loss",
                "lower trainer.learning_rate, or choose precision bf16 or fp32",
            )
