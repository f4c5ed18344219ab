"""What a site allows: slurm/SITE/site.yaml, described by core/schemas/site.schema.yaml."""

import os
from dataclasses import dataclass
from pathlib import Path

import yaml

from gpufeed.core.config import ROOT
from gpufeed.core.config_schema import explain, first_error, read_yaml
from gpufeed.core.errors import GpufeedError, unknown

OWN = Path("slurm")  # of a folder of runs, as gpufeed init writes it
PROFILES = OWN.absolute() if OWN.is_dir() else ROOT / "slurm"


@dataclass(frozen=True)
class Qos:
    """Limits of one quality of service; None: no known limit.

    hours: of one job. gpu_hours: GPUs x hours of one job. preempted_after_hours: when Slurm may preempt a
    job.
    """

    hours: float | None = None
    gpu_hours: float | None = None
    preempted_after_hours: float | None = None


@dataclass(frozen=True)
class Scratch:
    """Where data and results belong; files: the number that a user may have there."""

    folder: Path
    files: int


@dataclass(frozen=True)
class Site:
    """A cluster.

    account: a placeholder for messages; "" if jobs have none. qos: those of the site, if any. gpus: Slurm's
    name of a model -> compute capability. constraints: feature -> the model that it selects.
    """

    name: str
    login: str
    account: str
    qos: dict[str, Qos]
    gpus: dict[str, str]
    constraints: dict[str, str]
    scratch: Scratch


def sites(folder: Path = PROFILES) -> list[str]:
    """Return the names of the sites that have a profile."""
    return sorted(path.parent.name for path in folder.glob("*/site.yaml"))


def read_site(name: str, folder: Path = PROFILES) -> Site:
    """Return the site of a name; raise GpufeedError for an unknown one or an invalid file."""
    if name not in sites(folder) and not (folder / name).is_dir():  # a folder may lack the file
        raise unknown("site", name, sites(folder), f"{folder}")
    path = folder / name / "site.yaml"
    try:
        raw = read_yaml(path.read_text(), str(path))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise GpufeedError(
            f"{path}: {error}", "a YAML file", "compare the file with that of another site"
        ) from error
    if error := first_error("site", raw):
        raise explain(error, str(path))
    scratch = Path(os.path.expandvars(raw["scratch"]["folder"])).expanduser()
    made = {"scratch": Scratch(scratch, raw["scratch"]["files"]), "account": raw["account"] or ""}
    made["qos"] = {name: Qos(**limits) for name, limits in (raw["qos"] or {}).items()}
    return Site(**raw | made)
