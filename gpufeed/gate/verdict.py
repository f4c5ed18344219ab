"""The verdict on one loader and dataset, to and from JSON (gpufeed/schemas/gate.schema.yaml)."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

import yaml
from jsonschema import Draft202012Validator

from gpufeed.errors import GpufeedError, Skip
from gpufeed.gate.variants import settings_of

SCHEMA_VERSION = 1
SCHEMAS = Path(__file__).parents[1] / "schemas"
REMEDY = "delete the file and run snakemake to judge the loader again"


@dataclass
class Judged:
    """One setting of a loader. Fields as in the schema; differences are None if no pixel was compared."""

    settings: dict
    status: str = "passed"  # passed | failed | skipped
    sentence: str | None = None
    epochs: int = 0  # that were looked at to their end
    samples: int = 0  # compared, over all epochs
    max_difference: int | None = None
    mean_difference: float | None = None
    beyond_tolerance: int = 0
    offenders: list[dict] = field(default_factory=list)


@dataclass
class Verdict:
    """What the gate says of one loader on one dataset. Fields as in the schema."""

    dataset: str
    loader: str
    attempt: int
    planned_on: str
    started_at: str
    finished_at: str
    environment: dict
    variants: list[Judged]
    device: str | None = None
    samples: dict = field(default_factory=dict)
    pixels: dict | None = None
    reference: dict | None = None
    status: str = "passed"
    sentence: str | None = None
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self):
        """The status of the whole is its worst setting's: failed, then skipped, then passed."""
        self.variants = [one if isinstance(one, Judged) else Judged(**one) for one in self.variants]
        for status in ("failed", "skipped"):
            bad = [one for one in self.variants if one.status == status]
            if bad:
                self.status, self.sentence = status, bad[0].sentence
                return

    def of(self, settings: Mapping) -> Judged:
        """The judgement on one setting; raises GpufeedError if there is none."""
        for one in self.variants:
            if one.settings == settings:
                return one
        raise GpufeedError(
            f"no verdict on {self.loader} with {words(settings)}",
            f"one of the {len(self.variants)} settings that the gate was asked to judge",
            "run snakemake again: it judges every setting that the config plans",
        )

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
    """The loader failed the gate with a cell's settings, so that the cell must not be timed."""


def admit(path: str | Path, cell: Mapping) -> None:
    """Returns if the gate let the cell's loader pass with its settings (cell: Cell.asdict).

    Raises NotPassed if it did not, Skip with the gate's own sentence if it could not judge.
    """
    verdict = Verdict.read(path)
    judged = verdict.of(settings_of(cell))
    if judged.status == "failed":
        raise NotPassed(f"{verdict.loader} did not pass the equivalence gate: {judged.sentence}")
    if judged.status == "skipped":
        raise Skip(judged.sentence)


def words(settings: Mapping) -> str:
    """Settings for a person, such as "batch size 32, 2 workers, prefetch 2, persistent, pinned, seed 0"."""
    workers = settings["workers"]
    parts = [f"batch size {settings['batch_size']}", f"{workers} worker{'' if workers == 1 else 's'}"]
    if settings["prefetch_factor"] is not None:
        parts.append(f"prefetch {settings['prefetch_factor']}")
    parts += ["persistent"] * settings["persistent_workers"]
    parts.append("pinned" if settings["pin_memory"] else "not pinned")
    return ", ".join([*parts, f"seed {settings['seed']}"])


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
