"""What a site allows: slurm/SITE/site.yaml."""

import os
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from gpufeed.core.config_schema import read_yaml
from gpufeed.core.errors import GpufeedError, unknown

ROOT = Path(__file__).resolve().parents[3]
PROFILES = ROOT / "slurm"
COMPARE = "compare the file with that of another site"
IN_QUOTES = "write names and versions in quotes, such as '3.11'"


@dataclass(frozen=True)
class Qos:
    """Limits of one quality of service; None: preflight knows none.

    hours: of one job. gpu_hours: GPUs x hours of one job. preempted_after_hours: from then on Slurm may take
    the node away.
    """

    hours: float | None = None
    gpu_hours: float | None = None
    preempted_after_hours: float | None = None


@dataclass(frozen=True)
class Scratch:
    """Where data and results belong; files: how many a user may have there."""

    folder: Path
    files: int


@dataclass(frozen=True)
class Site:
    """A cluster.

    account: what to write as one; "" where jobs have none. qos: those of the site; empty where it has none.
    gpus: Slurm's name of a model -> compute capability. constraints: feature -> model that it picks.
    modules: environment module -> least version, where it is loaded at all.
    """

    name: str
    login: str
    account: str
    qos: dict[str, Qos]
    gpus: dict[str, str]
    constraints: dict[str, str]
    scratch: Scratch
    modules: dict[str, str] = field(default_factory=dict)


def sites(folder: Path = PROFILES) -> list[str]:
    """Names of the sites that have a profile."""
    return sorted(path.parent.name for path in folder.glob("*/site.yaml"))


def read_site(name: str, folder: Path = PROFILES) -> Site:
    """The site of a name; raises GpufeedError for an unknown one, or a file with other keys than Site has."""
    if name not in sites(folder):
        raise unknown("site", name, sites(folder), f"{folder}")
    path = folder / name / "site.yaml"
    try:
        raw = read_yaml(path.read_text(), str(path))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise GpufeedError(f"{path}: {error}", "a file of YAML", COMPARE) from error
    return make_site(raw, path)


def make_site(raw: dict[str, Any], path: Path) -> Site:
    """A Site of the content of its file; raises GpufeedError for other keys and values than a site has."""
    try:
        folder = Path(os.path.expandvars(raw["scratch"]["folder"])).expanduser()
        scratch = Scratch(folder, number(raw["scratch"]["files"]))
        qos = {
            name: Qos(**{key: number(value) for key, value in limits.items()})
            for name, limits in (raw["qos"] or {}).items()
        }
        gpus = {model: capability(value) for model, value in raw["gpus"].items()}
        texts = {key: map_of_text(key, raw[key]) for key in ("modules", "constraints") if key in raw}
        account = raw["account"] or ""
        return Site(**{**raw, **texts, "account": account, "scratch": scratch, "qos": qos, "gpus": gpus})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise GpufeedError(
            f"{path}: {type(error).__name__}: {error}",
            f"the keys {', '.join(key.name for key in fields(Site))}; hours, gpu_hours and files as numbers, "
            "modules and constraints as maps of text",
            COMPARE,
        ) from error


def number(value: object) -> float:
    """The value, if it is a number above 0; raises ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{value!r} is no number above 0")
    return value


def map_of_text(name: str, value: object) -> dict[str, str]:
    """The value, if it is a map of text to text; raises ValueError otherwise (YAML reads 3.10 as 3.1)."""
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {value!r}, no map")
    for key, text in value.items():
        if not isinstance(key, str):
            raise ValueError(f"{name}: the key {key!r} is no text: {IN_QUOTES}")
        if not isinstance(text, str):
            raise ValueError(f"{name}: {key} is {text!r}, no text: {IN_QUOTES}")
    return value


def capability(value: object) -> str:
    """A compute capability, such as 9.0; raises ValueError otherwise."""
    if not re.fullmatch(r"\d+\.\d", str(value)):
        raise ValueError(f"{value!r} is no compute capability, such as '9.0'")
    return str(value)
