"""The verdict on one loader, dataset and setting, to and from JSON (gpufeed/schemas/gate.schema.yaml)."""

import json
import os
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

import yaml
from jsonschema import Draft202012Validator

from gpufeed.errors import GpufeedError, Skip

SCHEMA_VERSION = 1
SCHEMAS = Path(__file__).parents[1] / "schemas"
REMEDY = "delete the file and run snakemake to judge the loader again"


@dataclass
class Verdict:
    """What the gate says of one loader with one setting. Fields as in the schema.

    The differences are None if no pixel was compared.
    """

    dataset: str
    loader: str
    settings: dict
    attempt: int
    planned_on: str
    started_at: str
    finished_at: str
    environment: dict
    status: str  # passed | failed | skipped
    sentence: str | None = None
    device: str | None = None
    samples: dict = field(default_factory=dict)
    pixels: dict | None = None
    reference: dict | None = None
    epochs: int = 0
    compared: int = 0
    max_difference: int | None = None
    mean_difference: float | None = None
    beyond_tolerance: int = 0
    offenders: list[dict] = field(default_factory=list)
    schema_version: int = SCHEMA_VERSION

    def write(self, path: str | Path) -> None:
        """Writes the verdict as JSON, whole or not at all; raises GpufeedError if it breaks the schema."""
        path = Path(path)
        data = asdict(self)
        check(data, path)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        partial.write_text(json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n")
        os.replace(partial, path)

    @classmethod
    def read(cls, path: str | Path) -> "Verdict":
        """Reads a verdict; raises GpufeedError if it is missing, damaged or of another schema version."""
        path = Path(path)
        try:
            data = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise GpufeedError(
                f"no readable verdict at {path} ({error})", "the JSON of one gate", REMEDY
            ) from error
        check(data, path)
        return cls(**data)


class NotPassed(Exception):
    """The loader failed the gate, so that no cell with its settings may be timed."""


def admit(path: str | Path) -> None:
    """Returns if the verdict at `path` lets its loader be timed.

    Raises NotPassed if it does not, Skip with the gate's own sentence if it could not judge.
    """
    verdict = Verdict.read(path)
    if verdict.status == "failed":
        raise NotPassed(f"{verdict.loader} did not pass the equivalence gate: {verdict.sentence}")
    if verdict.status == "skipped":
        raise Skip(verdict.sentence)


@cache
def _validator() -> Draft202012Validator:
    schema, record = (
        yaml.safe_load((SCHEMAS / f"{name}.schema.yaml").read_text()) for name in ("gate", "record")
    )
    schema["properties"]["environment"] = record["properties"]["environment"]
    return Draft202012Validator(schema)


def check(data: dict, path: Path) -> None:
    """Raises GpufeedError at the first field of `data` that breaks the schema."""
    for error in _validator().iter_errors(data):
        raise GpufeedError(
            f"{path}: {error.json_path}: {error.message}",
            "a verdict as gpufeed/schemas/gate.schema.yaml describes it",
            REMEDY,
        )
