"""The config, checked before anything is planned, and the hyper-parameters of config/hydra.

Imported while the workflow plans, so it needs nothing beyond what Snakemake itself brings.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from gpufeed.errors import GpufeedError, unknown
from gpufeed.experiment import Cell, Plan, plan
from gpufeed.registry import LAYOUTS

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = Path(__file__).parent / "schemas/config.schema.yaml"
HYPER = ROOT / "config/hydra"
GROUPS = ("model", "trainer", "augment")


def explain(error: ValidationError) -> GpufeedError:
    """A schema violation as found / expected / what to do."""
    where = ".".join(str(part) for part in error.absolute_path) or "the config"
    if error.validator == "additionalProperties" and isinstance(error.instance, Mapping):
        allowed = error.schema.get("properties", {})
        extra = next(key for key in error.instance if key not in allowed)
        return unknown("key", extra, allowed, where)
    if error.validator == "required":
        missing = next(key for key in error.validator_value if key not in error.instance)
        described = error.schema["properties"][missing].get("description", "")
        return GpufeedError(
            f"no {missing!r} in {where}", described or f"a {missing}", f"add {missing!r} to {where}"
        )
    bounds = {
        key: error.schema[key]
        for key in ("type", "enum", "minimum", "maximum", "exclusiveMaximum", "pattern", "minItems", "const")
        if key in error.schema
    }
    expected = ", ".join(f"{key} {value}" for key, value in bounds.items())
    if description := error.schema.get("description"):
        expected += f" ({description})"
    return GpufeedError(f"{where}: {error.instance!r}", expected, f"correct {where} in the config")


def check(config: Mapping) -> None:
    """Raises GpufeedError at the first thing in the config that cannot be meant."""
    validator = Draft202012Validator(yaml.safe_load(SCHEMA.read_text()))
    errors = sorted(
        validator.iter_errors(config), key=lambda error: [str(part) for part in error.absolute_path]
    )
    if errors:
        raise explain(errors[0])
    sources = config["sources"]
    for name, source in sources.items():
        if source["layout"] not in LAYOUTS:
            raise unknown("layout", source["layout"], LAYOUTS, f"sources.{name}")
        if source["layout"] != "synthetic" and not source.get("files"):
            raise GpufeedError(
                f"no files in sources.{name}", "at least one row with name and sha256", "add `files:` to it"
            )
    for name, stand_in in config["use_instead"].items():
        for dataset in (name, stand_in):
            if dataset not in sources:
                raise unknown("dataset", dataset, sources, "use_instead")


def read_hyper(group: str, name: str) -> dict:
    """The defaults of one model, trainer or augment from config/hydra."""
    path = HYPER / group / f"{name}.yaml"
    try:
        return yaml.safe_load(path.read_text()) or {}
    except OSError as error:
        raise GpufeedError(
            f"no hyper-parameters of {group} {name!r}",
            f"a file {path.relative_to(ROOT)}",
            "write it, if only with {}",
        ) from error


def parse_override(text: str) -> tuple[str, str, object]:
    """'model.stem=cifar' as (group, key, value); the value is JSON where it can be, else a string."""
    target, _, value = text.partition("=")
    group, _, key = target.partition(".")
    try:
        return group, key, json.loads(value)
    except ValueError:
        return group, key, value


def same_kind(default: object, value: object) -> bool:
    """Whether an override may replace a default: numbers by numbers, words by words, flags by flags."""
    numbers = (int, float)
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, numbers):
        return isinstance(value, int) if isinstance(default, int) else isinstance(value, numbers)
    return default is None or isinstance(value, type(default))


class Composer:
    """Hyper-parameters of a cell: the defaults of its model, trainer and augment, then its overrides."""

    def __init__(self):
        self.defaults: dict[tuple[str, str], dict] = {}

    def __call__(self, cell: Cell, where: str) -> dict:
        hyper = {}
        for group in GROUPS:
            key = (group, getattr(cell, group))
            if key not in self.defaults:
                self.defaults[key] = read_hyper(*key)
            hyper[group] = dict(self.defaults[key])
        for text in cell.overrides:
            group, key, value = parse_override(text)
            if key not in hyper[group]:
                raise unknown(f"{group} hyper-parameter", key, hyper[group], f"{where}: {text}")
            default = hyper[group][key]
            if not same_kind(default, value):
                raise GpufeedError(
                    f"{text!r} in {where}",
                    f"a {type(default).__name__}, such as {default!r}",
                    "correct the value",
                )
            hyper[group][key] = value
        return hyper


def planned(config: Mapping) -> Plan:
    """Checks a config and returns all its cells."""
    check(config)
    return plan(config, Composer())
