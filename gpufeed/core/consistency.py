"""Whether a document agrees with itself: its cell with its name, and its numbers with each other.

Whoever edits a number by hand seldom edits all that follow from it. Standard library only.
"""

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from gpufeed.core.cells import cell_id
from gpufeed.core.registry import KINDS

NAMES = ("loader", "augment", "model", "trainer")  # of a cell, each in the registry
# Numbers of one dictionary, where it has them: none is larger than the next.
ORDERS = (
    ("min", "p05", "median", "p95", "max"),
    ("min", "mean", "max"),
    ("ci95_low", "median", "ci95_high"),
    ("ms_q1", "ms_median", "ms_q3"),
    ("median", "p90", "p99"),
)
# The first is factor x the second / the third.
QUOTIENTS = (
    ("images_per_s", "images", "seconds", 1),
    ("images_per_s", "images", "epoch_s", 1),
    ("top1", "correct", "images", 1),
    ("top1", "correct", "n", 1),
    ("share_of_copy", "copy_ms", "ms_median", 1),
    ("gb_per_s", "bytes", "ms_median", 1e-6),
    ("tflop_per_s", "flops", "ms_median", 1e-9),
)
TOLERANCE = 1e-6  # numbers are written with all their digits: this is for another order of adding up
FREE = ("settings", "environment", "source", "hyper")  # what these hold was asked for, or has no rule


def disagreements(document: Mapping) -> Iterator[str]:
    """Yield a sentence for each contradiction in a document that follows its schema."""
    if "cell" in document:
        yield from _of_cell(document)
    elif "loader" in document:
        yield from _unknown("loader", document["loader"])
    yield from _of_numbers(document, "")
    if document.get("throughput") and document.get("steps"):
        yield from _of_steps(document["throughput"], document["steps"])


def _of_cell(document: Mapping) -> Iterator[str]:
    cell, name = document["cell"], document["cell_id"]
    for kind in NAMES:
        yield from _unknown(kind, cell[kind])
    if cell["experiment"] != document["experiment"]:
        yield f"experiment {document['experiment']!r} with a cell of {cell['experiment']!r}"
    if (ours := cell_id(cell)) != name:
        yield f"cell_id {name!r}, and the digest of its cell's settings gives {ours!r}"


def _unknown(kind: str, name: str) -> Iterator[str]:
    if name not in KINDS[kind]:
        yield f"{kind} {name!r}, which gpufeed does not have"


def _of_numbers(part: Any, where: str) -> Iterator[str]:
    """Yield contradictions between numbers, in a part and all within it; where: such as `epochs[0].`."""
    if isinstance(part, list):
        for number, inner in enumerate(part):
            yield from _of_numbers(inner, f"{where.removesuffix('.')}[{number}].")
        return
    if not isinstance(part, Mapping):
        return
    for names in ORDERS:
        known = [name for name in names if _is_number(part.get(name))]
        for low, high in pairwise(known):
            if part[low] > part[high] and not math.isclose(part[low], part[high], rel_tol=TOLERANCE):
                yield f"{where}{low} {part[low]} is above {high} {part[high]}"
    for result, above, below, factor in QUOTIENTS:
        if all(_is_number(part.get(name)) for name in (result, above, below)) and part[below]:
            yield from _other(
                f"{where}{result}", part[result], f"{above} / {below}", factor * part[above] / part[below]
            )
    for key, inner in part.items():
        if key not in FREE:
            yield from _of_numbers(inner, f"{where}{key}.")


def _of_steps(throughput: Mapping, steps: Mapping) -> Iterator[str]:
    """Yield where the seconds or the share of waiting of a record are not those of its steps."""
    total_ms, wait_ms = steps["total_ms"]["mean"], steps["wait_ms"]["mean"]
    yield from _other(
        "throughput.seconds", throughput["seconds"], "that of its steps", steps["n"] * total_ms / 1e3
    )
    if total_ms > 0:
        share = min(1.0, wait_ms / total_ms)
        yield from _other("throughput.wait_share", throughput["wait_share"], "that of its steps", share)


def _other(name: str, found: float, of: str, expected: float) -> Iterator[str]:
    if not math.isclose(found, expected, rel_tol=TOLERANCE, abs_tol=1e-12):
        yield f"{name} is {found:.9g}, and {of} is {expected:.9g}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
