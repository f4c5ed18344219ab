"""Decides whether an experiment has enough repeats, by the interval of every cell's median."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpufeed.core.record import Record
from gpufeed.core.repeats import counting, machine
from gpufeed.system.statistics import ENOUGH_FOR_INTERVAL, summarise


def decide(records: Iterable[str | Path], within: float) -> dict[str, Any]:
    """Return {"more": whether another block is needed, "cells": cell -> n, median, low, high, narrow}.

    records: paths of all records so far, of which one counts for each repeat. within: as in Auto. The
    images/s of finished repeats count, not those of skipped, failed or resumed ones. A cell without any needs
    no more, since more would not help. If several machines measured a cell, only the one with most repeats
    counts. Below six repeats, low and high are None.
    """
    rates: dict[str, dict[tuple, list[float]]] = {}
    read = {path: Record.read(path) for path in map(Path, records)}
    for path in counting({path: (machine(vars(record)), record.telemetry) for path, record in read.items()}):
        record = read[path]
        if record.throughput is not None:
            of_cell = rates.setdefault(record.cell_id, {})
            of_cell.setdefault(machine(vars(record)), []).append(record.throughput["images_per_s"])
    cells = {cell: interval_of(max(found.values(), key=len), within) for cell, found in sorted(rates.items())}
    return {"more": not all(cell["narrow"] for cell in cells.values()), "within": within, "cells": cells}


def interval_of(rates: list[float], within: float) -> dict[str, Any]:
    """Return a cell's median and interval, and whether both ends are within this share of the median."""
    found = summarise(rates)
    n, median = found["n"], found["median"]
    low, high = found["ci95_low"], found["ci95_high"]
    if n < ENOUGH_FOR_INTERVAL:
        return {"n": n, "median": median, "low": None, "high": None, "narrow": False}
    narrow = low >= median * (1 - within) and high <= median * (1 + within)
    return {"n": n, "median": median, "low": low, "high": high, "narrow": bool(narrow)}
