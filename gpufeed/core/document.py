"""JSON documents with closed schemas: written whole or not at all, checked when written and when read.

Reading a document also checks that it is consistent: its cell with its id, and its numbers with each other.
That catches numbers edited by hand.
"""

import glob
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker

from gpufeed.core.cells import cell_id
from gpufeed.core.config_schema import read_schema
from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import write_whole
from gpufeed.core.registry import KINDS

SHARED = {"cell", "environment", "started_at", "finished_at"}
MAKE_AGAIN = "restore an intact copy, or move the file away and run snakemake, which makes it again"
NOT_WRITTEN = "nothing was written, and your input is fine: report this to the maintainers of gpufeed"
REGISTERED = ("loader", "augment", "model", "trainer")  # fields of a cell that name registry entries
# Keys of one dictionary whose values must not decrease.
ORDERS = (
    ("min", "p05", "median", "p95", "max"),
    ("min", "mean", "max"),
    ("ci95_low", "median", "ci95_high"),
    ("ms_q1", "ms_median", "ms_q3"),
    ("median", "p90", "p99"),
)
# (result, numerator, denominator, factor): result = factor * numerator / denominator.
QUOTIENTS = (
    ("images_per_s", "images", "seconds", 1),
    ("images_per_s", "images", "epoch_s", 1),
    ("top1", "correct", "images", 1),
    ("top1", "correct", "n", 1),
    ("share_of_copy", "copy_ms", "ms_median", 1),
    ("gb_per_s", "bytes", "ms_median", 1e-6),
    ("tflop_per_s", "flops", "ms_median", 1e-9),
)
TOLERANCE = 1e-6  # for sums in another order: numbers are written with all digits
FREE = ("settings", "environment", "source", "hyper")  # not checked: input, or without a rule


@dataclass(frozen=True)
class Document:
    """One kind of document.

    schema: its name in gpufeed/core/schemas. word: its name in errors. places: patterns for the end of its
    path, formatted with its fields; "*" accepts any path.
    """

    schema: str
    word: str
    places: tuple[str, ...] = ("*",)

    def write(self, data: dict, path: str | Path) -> None:
        """Write the document; raise GpufeedError if it breaks the schema, ValueError for NaN and infinity."""
        path = Path(path)
        text = json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n"
        self.check(json.loads(text), path, NOT_WRITTEN)
        write_whole(path, text)

    def read(self, path: str | Path) -> dict:
        """Read a document; raise GpufeedError if it is missing, damaged or of another schema version.

        A document that lies where another belongs, or that contradicts itself, is refused too.
        """
        path = Path(path)
        try:
            data = json.loads(
                path.read_text(),
                parse_int=whole_number,
                parse_float=finite_number,
                parse_constant=finite_number,
            )
        except (OSError, ValueError) as error:
            raise GpufeedError(
                f"no readable {self.word} at {path} ({error})", f"the JSON of the {self.word}", MAKE_AGAIN
            ) from error
        known = validator(self.schema).schema["properties"]["schema_version"]["const"]
        if isinstance(data, dict) and (version := data.get("schema_version", known)) != known:
            raise GpufeedError(
                f"{path}: schema version {version}, which another version of gpufeed wrote",
                f"schema version {known}",
                "use the version of gpufeed that wrote it, or another folder of results",
            )
        self.check(data, path)
        for sentence in (*self.misplaced(data, path), *disagreements(data)):
            raise GpufeedError(f"{path}: {sentence}", f"the {self.word} as gpufeed wrote it", MAKE_AGAIN)
        return data

    def misplaced(self, data: dict, path: Path) -> list[str]:
        """Return a sentence if the document is not the one that its path names."""
        own = {key: glob.escape(str(value)) for key, value in data.items() if isinstance(value, str | int)}
        ends = [place.format(**own) for place in self.places]
        place = Path(os.path.abspath(path))  # without `..`
        found = any(place.match(end) for end in ends)
        return [] if found else [f"by its own fields, this file is {ends[0]}"]

    def check(self, data: object, path: Path, remedy: str = MAKE_AGAIN) -> None:
        """Raise GpufeedError with this remedy for the first field that breaks the schema."""
        for error in validator(self.schema).iter_errors(data):
            raise GpufeedError(
                f"{path}: {error.json_path}: {error.message}",
                f"what gpufeed/core/schemas/{self.schema}.schema.yaml describes",
                remedy,
            )


def finite_number(number: str) -> float:
    """Parse a number; raise ValueError for NaN, infinity and what a float cannot hold."""
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number} is no finite number")
    return value


def whole_number(number: str) -> int:
    """Parse an integer; raise ValueError if a float cannot hold it."""
    finite_number(number)
    return int(number)


FORMATS = FormatChecker(formats=())


@FORMATS.checks("date-time", raises=ValueError)
def is_time(text: object) -> bool:
    """Return whether a text is a valid ISO 8601 time; other types are left to `type`."""
    return not isinstance(text, str) or bool(datetime.fromisoformat(text))


@cache
def validator(schema: str) -> Draft202012Validator:
    """Return the validator of a schema; SHARED fields are described once, in the schema of records."""
    described, of_records = (read_schema(name) for name in (schema, "record"))
    for name in SHARED & described["properties"].keys():
        described["properties"][name] = of_records["properties"][name]
    described.setdefault("$defs", {})["time"] = of_records["$defs"]["time"]
    return Draft202012Validator(described, format_checker=FORMATS)


def now() -> str:
    """Return the time in UTC as ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


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
    for kind in REGISTERED:
        yield from _unknown(kind, cell[kind])
    if cell["experiment"] != document["experiment"]:
        yield f"experiment {document['experiment']!r} with a cell of {cell['experiment']!r}"
    if (ours := cell_id(cell)) != name:
        yield f"cell_id {name!r}, and the digest of its cell's settings gives {ours!r}"


def _unknown(kind: str, name: str) -> Iterator[str]:
    if name not in KINDS[kind]:
        yield f"{kind} {name!r}, which gpufeed does not have"


def _of_numbers(part: Any, where: str) -> Iterator[str]:
    """Yield contradictions between numbers in a part and below it; where: its place, such as `epochs[0].`."""
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
    """Yield contradictions between the throughput of a record and its steps."""
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
