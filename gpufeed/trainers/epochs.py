"""From the marks of an epoch to its rows and its entry in the record, the same for every trainer."""

import logging
import math
from collections.abc import Sequence

import torch

from gpufeed.errors import GpufeedError
from gpufeed.timing import Mark, Span, StepMarks
from gpufeed.trainers.base import TrainJob

log = logging.getLogger("gpufeed")


def summarise(
    epoch: int, start: Mark, marks: Sequence[StepMarks], losses: Sequence[torch.Tensor]
) -> tuple[dict, list[dict]]:
    """The entry of an epoch in the record and its rows; call after the device has passed its end.

    losses: 0-dimensional, one a step. Raises GpufeedError at the first one that is not finite.
    """
    values = torch.stack(list(losses)).float().tolist()
    rows = [mark.row(loss) for mark, loss in zip(marks, values, strict=True)]
    check_losses(rows)
    images, epoch_s = sum(row["images"] for row in rows), Span(start, marks[-1].train.end).ms() / 1e3
    entry = {
        "epoch": epoch,
        "steps": len(rows),
        "images": images,
        "epoch_s": epoch_s,
        "images_per_s": images / epoch_s,
        "train_loss": sum(row["loss"] * row["images"] for row in rows) / images,
        "accuracy": None,
    }
    return entry, rows


def log_epoch(entry: dict) -> None:
    log.info(
        "epoch %d: %d steps, %.2f s, %.0f images/s, loss %.4f",
        *(entry[key] for key in ("epoch", "steps", "epoch_s", "images_per_s", "train_loss")),
    )


def check_images(job: TrainJob, epoch: int, first_step: int, marks: Sequence[StepMarks]) -> None:
    """Raises GpufeedError if a whole epoch lost or repeated samples.

    first_step: the epoch's first step, counted from the start of the run.
    """
    images, expected = sum(mark.images for mark in marks), len(job.loader.order())
    cut_short = job.steps is not None and first_step + len(marks) == job.steps
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
