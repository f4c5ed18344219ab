"""Two pipelines side by side: find their cells, and print their batches during training.

Standard library only: the workflow imports this while it plans.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from statistics import fmean
from typing import Any

from gpufeed.core.cells import Plan, crossed
from gpufeed.core.errors import GpufeedError, unknown

LOGGER = "gpufeed.batches"  # a recorder logs each batch here if a handler is attached
PARTS = {"Load": "load_ms", "Transfer": "transfer_ms", "Train": "train_ms", "Total": "total_ms"}
TOTAL_SAYS = "Total is measured from the end of the previous batch, so it includes the wait for data."


def pair(config: Mapping, plan: Plan, experiment: str) -> dict[str, str]:
    """Return block -> id of its cell for the two blocks in `side_by_side`; {} without that key.

    Also {} if a cell is impossible under this config. Raises GpufeedError for an unknown block, a block of
    several cells, a cell without `synchronise: step`, and two blocks that are one cell.
    """
    found, where = {}, f"experiments.{experiment}.side_by_side"
    for block in (names := config["experiments"][experiment].get("side_by_side", [])):
        if block not in plan.blocks[experiment]:
            raise unknown("block", block, plan.blocks[experiment], where)
        cells = list(dict.fromkeys(plan.blocks[experiment][block]))
        if len(cells) > 1 or any(plan.cells[experiment][cell].synchronise != "step" for cell in cells):
            raise GpufeedError(
                f"block {block!r} in {where}: {len(cells)} cells, synchronise "
                f"{' and '.join(sorted({plan.cells[experiment][cell].synchronise for cell in cells}))}",
                "a block of one cell with synchronise step, whose phases are waited for",
                "give the block one value an axis and `synchronise: step`, or name another block",
            )
        if cells:
            found[block] = cells[0]
    if len(found) > len(set(found.values())):
        raise GpufeedError(
            f"blocks {' and '.join(map(repr, found))} in {where}, which are the same cell",
            "two cells to compare",
            "give one of the blocks another value of an axis, or name another block",
        )
    return found if len(found) == len(names) else {}


def words(block: str) -> str:
    """Return a block's name as words."""
    return block.replace("_", " ")


def block_of(config: Mapping, name: str, cell: Mapping) -> str | None:
    """Return the block in `side_by_side` of an experiment that is this cell (Cell.asdict), or None."""
    asked = config["experiments"][name].get("side_by_side", [])
    for block, made in crossed(config, name) if asked else ():
        if block in asked and as_text(made.asdict()) == as_text(cell):
            return block
    return None


def as_text(cell: Mapping) -> str:
    """Return a cell as JSON, without its hyper-parameters, which follow from its overrides."""
    return json.dumps({**cell, "hyper": None}, sort_keys=True)


def setup_check() -> str:
    """Describe torch, CUDA, the device that `auto` would take and its memory, in one line."""
    import psutil
    import torch

    from gpufeed.system.environment import cores_allowed

    built = torch.version.cuda or "none"
    said = f"torch {torch.__version__}, built for CUDA: {built}"
    card = None
    if torch.cuda.is_available():
        with suppress(RuntimeError):  # a GPU that cannot be used: the cell's record says why
            card = torch.cuda.get_device_properties(torch.cuda.current_device())
    if card:
        said += f", CUDA available: yes, GPU: {card.name}, {card.total_memory / 2**30:.1f} GiB"
    else:
        memory = psutil.virtual_memory().total / 2**30
        said += f", CUDA available: no, GPU: none, host memory: {memory:.1f} GiB"
    return f"Setup check: {said}, {cores_allowed()} CPU cores"


def line(name: object, values: Any) -> str:
    """Return a line of the table: a name and four times in milliseconds, or the headings."""
    cells = [f"{value:>12.2f}" if isinstance(value, float) else f"{value:>12}" for value in values]
    return f"{name:>6}" + "".join(cells)


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
    """Print each batch of a training with `synchronise: step` in this context, and at its end the means."""
    logger, table = logging.getLogger(LOGGER), Printed()
    logger.addHandler(table)
    logger.setLevel(logging.INFO)
    logger.propagate = False  # the batches are in the cell's record and need not be in the job's log
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
