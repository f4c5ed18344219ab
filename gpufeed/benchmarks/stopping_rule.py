"""Whether an experiment has repeats enough: is the interval of every cell's median narrow?"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpufeed.core.record import Record
from gpufeed.core.repeats import counting
from gpufeed.system.statistics import ENOUGH_FOR_INTERVAL, summarise


def decide(records: Iterable[str | Path], within: float) -> dict[str, Any]:
    """{"more": whether another block is needed, "cells": cell -> n, median, low, high, narrow}.

    records: the paths of all repeats so far, second records among them, of which one a repeat counts. within:
    as in Auto. Images/s of finished repeats count; skipped and failed ones do not, nor do those that were
    taken up again, which are no timings. A cell without any asks for nothing, since more would tell nothing.
    Of a cell that several machines measured, the one with most repeats counts: they are never one sample. low
    and high are None below six repeats.
    """
    rates: dict[str, dict[tuple, list[float]]] = {}
    read = {path: Record.read(path) for path in map(Path, records)}
    for path in counting({path: (machine(record), record.telemetry) for path, record in read.items()}):
        record = read[path]
        if record.throughput is not None:
            of_cell = rates.setdefault(record.cell_id, {})
            of_cell.setdefault(machine(record), []).append(record.throughput["images_per_s"])
    cells = {cell: interval_of(max(found.values(), key=len), within) for cell, found in sorted(rates.items())}
    return {"more": not all(cell["narrow"] for cell in cells.values()), "within": within, "cells": cells}


def machine(record: Record) -> tuple[str, str, str, int]:
    """What must be the same for repeats to share a row: hardware, stack, torch and the batch that fitted."""
    environment, resolved = record.environment, record.resolved or {}
    device, batch_size = resolved.get("device"), resolved.get("batch_size", record.cell["batch_size"])
    gpu = environment["gpu"] if device == "cuda" else None
    hardware = gpu["name"] if gpu else environment["cpu"]
    return hardware, environment["stack"], environment["versions"].get("torch", "unknown"), batch_size


def interval_of(rates: list[float], within: float) -> dict[str, Any]:
    """One cell's median and interval, and whether both ends are within that share of the median."""
    found = summarise(rates)
    n, median = found["n"], found["median"]
    low, high = found["ci95_low"], found["ci95_high"]
    if n < ENOUGH_FOR_INTERVAL:
        return {"n": n, "median": median, "low": None, "high": None, "narrow": False}
    narrow = low >= median * (1 - within) and high <= median * (1 + within)
    return {"n": n, "median": median, "low": low, "high": high, "narrow": bool(narrow)}
