"""JSON documents with closed schemas: written whole or not at all, checked when written and when read."""

import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import yaml
from jsonschema import Draft202012Validator, FormatChecker

from gpufeed.data.disk import whole
from gpufeed.errors import GpufeedError

SCHEMAS = Path(__file__).parent / "schemas"
MAKE_AGAIN = "put a whole copy back, or move it away and run snakemake, which makes its own again"
NOT_WRITTEN = (
    "nothing was written, and nothing of yours is wrong: tell who maintains gpufeed, with this message"
)


@dataclass(frozen=True)
class Document:
    """One kind of document. schema: its name in gpufeed/schemas; word: what an error calls it."""

    schema: str
    word: str

    def write(self, data: dict, path: str | Path) -> None:
        """Writes it; raises GpufeedError if it breaks the schema, ValueError for NaN and infinity."""
        path = Path(path)
        text = json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n"
        self.check(json.loads(text), path, NOT_WRITTEN)
        with whole(path) as partial:
            partial.write_text(text)

    def read(self, path: str | Path) -> dict:
        """Reads it; raises GpufeedError if it is missing, damaged or of another schema version."""
        path = Path(path)
        try:
            data = json.loads(path.read_text(), parse_float=finite, parse_constant=finite)
        except (OSError, ValueError) as error:
            raise GpufeedError(
                f"no readable {self.word} at {path} ({error})",
                f"the JSON of one {self.word}",
                MAKE_AGAIN,
            ) from error
        self.check(data, path)
        return data

    def check(self, data: object, path: Path, remedy: str = MAKE_AGAIN) -> None:
        """Raises GpufeedError with this remedy at the first field of `data` that breaks the schema."""
        for error in validator(self.schema).iter_errors(data):
            raise GpufeedError(
                f"{path}: {error.json_path}: {error.message}",
                f"a {self.word} as gpufeed/schemas/{self.schema}.schema.yaml describes it",
                remedy,
            )


def finite(number: str) -> float:
    """A number of a document; raises ValueError for NaN, infinity and what a float cannot hold."""
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number} is no finite number")
    return value


FORMATS = FormatChecker(formats=())


@FORMATS.checks("date-time", raises=ValueError)
def is_time(text: object) -> bool:
    """Whether a text is a time of ISO 8601 that the calendar has; what is no text is for `type` to tell."""
    return not isinstance(text, str) or bool(datetime.fromisoformat(text))


@cache
def validator(schema: str) -> Draft202012Validator:
    """The validator of a schema; a document's `environment` is described once, in the schema of records."""
    described, of_records = (
        yaml.safe_load((SCHEMAS / f"{name}.schema.yaml").read_text()) for name in (schema, "record")
    )
    if "environment" in described["properties"]:
        described["properties"]["environment"] = of_records["properties"]["environment"]
    return Draft202012Validator(described, format_checker=FORMATS)


def now() -> str:
    """UTC, ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
