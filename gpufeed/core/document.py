"""JSON documents with closed schemas: written whole or not at all, checked when written and when read."""

import glob
import json
import math
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import yaml
from jsonschema import Draft202012Validator, FormatChecker

from gpufeed.core.consistency import disagreements
from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import whole

SCHEMAS = Path(__file__).parent / "schemas"
SHARED = {"cell", "environment", "started_at", "finished_at"}
MAKE_AGAIN = "put a whole copy back, or move it away and run snakemake, which makes its own again"
NOT_WRITTEN = (
    "nothing was written, and nothing of yours is wrong: tell who maintains gpufeed, with this message"
)


@dataclass(frozen=True)
class Document:
    """One kind of document.

    schema: its name in gpufeed/core/schemas; word: what an error calls it; places: how its path may end, by
    its own fields, where the path says which one it is.
    """

    schema: str
    word: str
    places: tuple[str, ...] = ("*",)

    def write(self, data: dict, path: str | Path) -> None:
        """Writes it; raises GpufeedError if it breaks the schema, ValueError for NaN and infinity."""
        path = Path(path)
        text = json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n"
        self.check(json.loads(text), path, NOT_WRITTEN)
        with whole(path) as partial:
            partial.write_text(text)

    def read(self, path: str | Path) -> dict:
        """Reads it; raises GpufeedError if it is missing, damaged or of another schema version.

        So it does for one that lies where another belongs, or contradicts itself.
        """
        path = Path(path)
        try:
            data = json.loads(
                path.read_text(), parse_int=whole_number, parse_float=finite, parse_constant=finite
            )
        except (OSError, ValueError) as error:
            raise GpufeedError(
                f"no readable {self.word} at {path} ({error})",
                f"the JSON of one {self.word}",
                MAKE_AGAIN,
            ) from error
        self.check(data, path)
        for sentence in (*self.misplaced(data, path), *disagreements(data)):
            raise GpufeedError(f"{path}: {sentence}", f"a {self.word} as gpufeed wrote it", MAKE_AGAIN)
        return data

    def misplaced(self, data: dict, path: Path) -> list[str]:
        """A sentence if the document is not the one that its path says it is."""
        own = {key: glob.escape(str(value)) for key, value in data.items() if isinstance(value, str | int)}
        ends = [place.format(**own) for place in self.places]
        place = Path(os.path.abspath(path))  # without `..`
        found = any(place.match(end) for end in ends)
        return [] if found else [f"what lies there says of itself that it is {ends[0]}"]

    def check(self, data: object, path: Path, remedy: str = MAKE_AGAIN) -> None:
        """Raises GpufeedError with this remedy at the first field of `data` that breaks the schema."""
        for error in validator(self.schema).iter_errors(data):
            raise GpufeedError(
                f"{path}: {error.json_path}: {error.message}",
                f"a {self.word} as gpufeed/core/schemas/{self.schema}.schema.yaml describes it",
                remedy,
            )


def finite(number: str) -> float:
    """A number of a document; raises ValueError for NaN, infinity and what a float cannot hold."""
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number} is no finite number")
    return value


def whole_number(number: str) -> int:
    """As `finite`, of a number without a fraction."""
    finite(number)
    return int(number)


FORMATS = FormatChecker(formats=())


@FORMATS.checks("date-time", raises=ValueError)
def is_time(text: object) -> bool:
    """Whether a text is a time of ISO 8601 that the calendar has; what is no text is for `type` to tell."""
    return not isinstance(text, str) or bool(datetime.fromisoformat(text))


@cache
def validator(schema: str) -> Draft202012Validator:
    """The validator of a schema; SHARED fields are described once, in the schema of records."""
    described, of_records = (
        yaml.safe_load((SCHEMAS / f"{name}.schema.yaml").read_text()) for name in (schema, "record")
    )
    for name in SHARED & described["properties"].keys():
        described["properties"][name] = of_records["properties"][name]
    described.setdefault("$defs", {})["time"] = of_records["$defs"]["time"]
    return Draft202012Validator(described, format_checker=FORMATS)


def now() -> str:
    """UTC, ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
