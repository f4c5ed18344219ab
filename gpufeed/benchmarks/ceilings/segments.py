"""Segments of training on an open loader, and on one replayed batch: the compute-only ceiling."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import groupby
from statistics import median
from typing import Any

from gpufeed.loaders.base import Batch, Loader, LoadRequest
from gpufeed.loaders.replay import repeated
from gpufeed.training.engines.base import TrainResult
from gpufeed.training.engines.plain import PlainTrainer
from gpufeed.training.step import Snapshot

log = logging.getLogger("gpufeed")


class ReplayedBatch(Loader):
    """Yields one batch as often as an epoch has batches, the last time cut to the size of the last batch."""

    def __init__(self, request: LoadRequest, batch: Batch, batches: int | None = None):
        """Keep the batch, a clone of the first of an epoch. batches: of an epoch, if not as many as usual."""
        super().__init__(request)
        self.batch, self.batches = batch, batches

    @property
    def share(self) -> int:
        return super().share if self.batches is None else self.batches * len(self.batch.images)

    def epoch_batches(self, done: int) -> Iterator[Batch]:
        size = self.request.batch_size
        return repeated(self.batch, self.share - done * size, size)


@dataclass(frozen=True)
class Segment:
    """Seconds on the device's clock, each epoch from its first request to the end of its last step.

    seconds = wait_s + step_s. wait_s: the gaps between steps on the compute stream. start_s: how much longer
    the first steps of the epochs waited than the later ones; a part of wait_s.
    """

    seconds: float
    wait_s: float
    step_s: float
    start_s: float

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> "Segment":
        """Return the segment of these steps (gpufeed.system.timing.STEP_COLUMNS)."""
        seconds, wait_s, step_s = (
            sum(row[name] for row in rows) / 1e3 for name in ("total_ms", "wait_ms", "train_ms")
        )
        return cls(seconds, wait_s, step_s, min(wait_s, starts_s(rows)))


def starts_s(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return how much longer first steps waited than the median of later ones; 0 with one step an epoch."""
    whole = 0.0
    for _, epoch in groupby(rows, key=lambda row: row["epoch"]):
        first, *later = (row["wait_ms"] for row in epoch)
        whole += max(0.0, first - median(later)) / 1e3 if later else 0.0
    return whole


class Bench:
    """A prepared trainer, whose compiled or captured step all segments share.

    Each segment starts from the initial weights, so that no segment depends on those before it.
    """

    def __init__(self, trainer: PlainTrainer):
        """Keep a trainer that is prepared, and has not run yet."""
        self.trainer, self.snapshot = trainer, Snapshot(trainer.train_step)

    def train(self, loader: Loader, epochs: int = 0, **length: float) -> TrainResult:
        """Train on an open loader from the initial weights. length: as in PlainTrainer.over."""
        self.snapshot.put_back()
        with hushed():
            return self.trainer.over(loader, epochs, **length)

    def segment(self, loader: Loader, epochs: int, lead_in: bool = True) -> Segment:
        """Train, and return the times.

        A loader that works between epochs has had all the time since its last epoch to prefetch. With
        lead_in, an extra first epoch absorbs that, and is not counted.
        """
        lead = int(lead_in and loader.keeps_on)
        rows = self.train(loader, lead + epochs).steps
        return Segment.of([row for row in rows if row["epoch"] >= lead])

    def pairs(self, loader: Loader, replayed: Loader, epochs: int, count: int) -> list[dict[str, Any]]:
        """Return pairs of segments, end to end and compute only, in the order ABBA ABBA...

        So a drift of the machine, in either direction, affects both sides equally.
        """
        sides, found = {"end_to_end": loader, "compute_only": replayed}, []
        for number in range(count):
            order = list(sides) if number % 2 == 0 else list(sides)[::-1]
            times = {side: asdict(self.segment(sides[side], epochs)) for side in order}
            found.append({"first": order[0], **times})
            log.info(
                "pair %d of %d: end to end %.4f s, compute only %.4f s",
                *(number + 1, count, times["end_to_end"]["seconds"], times["compute_only"]["seconds"]),
            )
        return found


@contextmanager
def hushed() -> Iterator[None]:
    """Silence the log below warnings inside the block: segments may be thousands of epochs."""
    before = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(before)
