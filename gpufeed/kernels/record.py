"""The JSON that the kernel benchmark leaves behind; gpufeed/schemas/kernel.schema.yaml describes it."""

import json
import os
from functools import cache
from pathlib import Path

import yaml
from jsonschema import Draft202012Validator

from gpufeed.errors import GpufeedError
from gpufeed.record import SCHEMA as RECORD_SCHEMA

SCHEMA = Path(__file__).parents[1] / "schemas/kernel.schema.yaml"
SCHEMA_VERSION = 1


def write(found: dict, path: str | Path) -> None:
    """Writes a benchmark, whole or not at all; raises GpufeedError if it breaks the schema."""
    path = Path(path)
    check(found, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(found, indent=1, sort_keys=True, allow_nan=False) + "\n")
    os.replace(partial, path)


def read(path: str | Path) -> dict:
    """Reads a benchmark; raises GpufeedError if it is damaged or of another schema version."""
    path = Path(path)
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise GpufeedError(
            f"no readable kernel benchmark at {path} ({error})",
            "the JSON of the benchmark",
            "delete it and run snakemake",
        ) from error
    check(found, path)
    return found


@cache
def _validator() -> Draft202012Validator:
    schema = yaml.safe_load(SCHEMA.read_text())
    of_records = yaml.safe_load(RECORD_SCHEMA.read_text())
    schema["properties"]["environment"] = of_records["properties"]["environment"]
    return Draft202012Validator(schema)


def check(found: object, path: Path) -> None:
    """Raises GpufeedError at the first field that breaks the schema."""
    for error in _validator().iter_errors(found):
        raise GpufeedError(
            f"{path}: {error.json_path}: {error.message}",
            "a benchmark as gpufeed/schemas/kernel.schema.yaml describes it",
            "delete it and run snakemake to measure it again",
        )
