"""The record: what one repeat of one cell leaves behind, and all that tables and figures read.

`gpufeed/schemas/record.schema.yaml` describes every field with its unit.
"""

import json
import os
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

import yaml
from jsonschema import Draft202012Validator

from gpufeed.errors import GpufeedError

SCHEMA_VERSION = 1
SCHEMA = Path(__file__).parent / "schemas/record.schema.yaml"


@dataclass
class Record:
    """One repeat. Fields as in the schema; everything measured is None unless status is `done`."""

    experiment: str
    cell_id: str
    repeat: int
    status: str  # done | skipped | failed
    planned_on: str
    started_at: str
    finished_at: str
    cell: dict
    environment: dict
    attempt: int = 1
    sentence: str | None = None
    resolved: dict | None = None
    phases: dict | None = None
    warmup: dict | None = None
    steps: dict | None = None
    epochs: list[dict] = field(default_factory=list)
    throughput: dict | None = None
    accuracy: dict | None = None
    memory: dict | None = None
    dataset: dict | None = None
    schema_version: int = SCHEMA_VERSION

    def write(self, path: str | Path) -> None:
        """Writes the record as JSON, whole or not at all; raises GpufeedError if it breaks the schema."""
        path = Path(path)
        data = asdict(self)
        check(data, path)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        with partial.open("w") as file:
            json.dump(data, file, indent=1, sort_keys=True, allow_nan=False)
            file.write("\n")
        os.replace(partial, path)

    @classmethod
    def read(cls, path: str | Path) -> "Record":
        """Reads a record; raises GpufeedError if it is damaged or of another schema version."""
        path = Path(path)
        try:
            data = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise GpufeedError(
                f"no readable record at {path} ({error})",
                "the JSON of one repeat",
                "delete it and run snakemake",
            ) from error
        check(data, path)
        return cls(**data)


@cache
def _validator() -> Draft202012Validator:
    return Draft202012Validator(yaml.safe_load(SCHEMA.read_text()))


def check(data: dict, path: Path) -> None:
    """Raises GpufeedError at the first field of `data` that breaks the schema."""
    for error in _validator().iter_errors(data):
        raise GpufeedError(
            f"{path}: {error.json_path}: {error.message}",
            "a record as gpufeed/schemas/record.schema.yaml describes it",
            "delete the record and run snakemake to measure it again",
        )
