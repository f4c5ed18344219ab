"""Print the batches of a training while it runs, for two pipelines that are compared side by side."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from statistics import fmean

import psutil
import torch

from gpufeed.core.plan_side_by_side import PARTS, TOTAL_SAYS, line
from gpufeed.system.environment import cores_allowed

LOGGER = "gpufeed.batches"  # a recorder logs each batch here if a handler is attached


def setup_check() -> str:
    """Describe torch, CUDA, the device that `auto` would take and its memory, in one line."""
    built = torch.version.cuda or "none"
    said = f"torch {torch.__version__}, built for CUDA: {built}"
    card = None
    if torch.cuda.is_available():
        with suppress(RuntimeError):  # an unusable GPU; the cell's record says why
            card = torch.cuda.get_device_properties(torch.cuda.current_device())
    if card:
        said += f", CUDA available: yes, GPU: {card.name}, {card.total_memory / 2**30:.1f} GiB"
    else:
        memory = psutil.virtual_memory().total / 2**30
        said += f", CUDA available: no, GPU: none, host memory: {memory:.1f} GiB"
    return f"Setup check: {said}, {cores_allowed()} CPU cores"


class Printed(logging.Handler):
    """Print each batch that a recorder logs, and keep its times."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[list[float]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.times.append([float(record.batch[name]) for name in PARTS.values()])
        print(line(record.batch["step"] + 1, self.times[-1]), flush=True)


@contextmanager
def printed(title: str) -> Iterator[None]:
    """Print each batch of a training with `synchronise: step` in this context, and the means at its end."""
    logger, table = logging.getLogger(LOGGER), Printed()
    logger.addHandler(table)
    logger.setLevel(logging.INFO)
    logger.propagate = False  # the batches are in the cell's record and not needed in the job's log
    print(f"\n{setup_check()}\n{title}, milliseconds per batch\n{line('Batch', PARTS)}", flush=True)
    try:
        yield
        if table.times:
            print(line("mean", [fmean(column) for column in zip(*table.times, strict=True)]))
            print(TOTAL_SAYS, flush=True)
    finally:
        logger.removeHandler(table)
        logger.setLevel(logging.NOTSET)
        logger.propagate = True
