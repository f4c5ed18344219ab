"""What a site allows: slurm/SITE/site.yaml."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from gpufeed.errors import GpufeedError, unknown

ROOT = Path(__file__).resolve().parents[2]
PROFILES = ROOT / "slurm"


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
    return make_site(yaml.safe_load(path.read_text()), path)


def make_site(raw: dict[str, Any], path: Path) -> Site:
    """A Site of the content of its file."""
    try:
        scratch = Scratch(Path(raw["scratch"]["folder"]).expanduser(), raw["scratch"]["files"])
        qos = {name: Qos(**limits) for name, limits in raw["qos"].items()}
        return Site(**{**raw, "scratch": scratch, "qos": qos})
    except (KeyError, TypeError, AttributeError) as error:
        raise GpufeedError(
            f"{path}: {type(error).__name__}: {error}",
            f"the keys {', '.join(key.name for key in fields(Site))}",
            "compare the file with that of another site",
        ) from error
