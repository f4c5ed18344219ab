"""The node on which preflight runs: its shell, Slurm's configuration, torch."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpufeed.core.config import ROOT

ASK_TORCH = "import torch; print(torch.version.cuda or '-', torch._C._cuda_getArchFlags() or '')"
NV = ("APPTAINER_NV", "SINGULARITY_NV")


@dataclass(frozen=True)
class Node:
    """A node. inside_job: the id of the Slurm job in which preflight runs.

    min_job_age: seconds for which squeue remembers an ended job; None if unknown. cuda: the CUDA version of
    torch, "" for none; None if torch does not start. architectures: those that torch has code for, such as
    sm_80. no_torch: why torch cannot be imported. checkout: where jobs start. commands: paths of those that
    run jobs. variables: names of SBATCH_* variables of the shell. nv: whether a variable gives containers the
    GPUs, as apptainer's --nv does.
    """

    inside_job: str | None = None
    min_job_age: int | None = None
    python: Path = Path(sys.executable)
    checkout: Path = ROOT
    cuda: str | None = None
    architectures: tuple[str, ...] = ()
    no_torch: str = ""
    commands: Mapping[str, str | None] = field(default_factory=dict)
    variables: tuple[str, ...] = ()
    nv: bool = False


def look() -> Node:
    """Return this node."""
    cuda, architectures, no_torch = ask_torch()
    return Node(
        inside_job=os.environ.get("SLURM_JOB_ID"),
        min_job_age=min_job_age(said_by("scontrol", "show", "config") or ""),
        cuda=cuda,
        architectures=architectures,
        no_torch=no_torch,
        commands={name: shutil.which(name) for name in ("apptainer", "singularity", "conda")},
        variables=tuple(sorted(name for name in os.environ if name.startswith("SBATCH_"))),
        nv=any(os.environ.get(name, "").strip().lower() in ("1", "t", "true") for name in NV),
    )


def said_by(*command: str) -> str | None:
    """Return the output of a command; None if it is missing, fails or takes longer than 20 s."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=20, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def min_job_age(config: str) -> int | None:
    """Return the seconds in `MinJobAge = 300 sec`, a line of Slurm's configuration."""
    found = re.search(r"^MinJobAge\s*=\s*(\d+)", config, re.MULTILINE)
    return int(found[1]) if found else None


def ask_torch() -> tuple[str | None, tuple[str, ...], str]:
    """Return (CUDA version, architectures, "") of this Python's torch, or (None, (), why it fails)."""
    done = subprocess.run([sys.executable, "-c", ASK_TORCH], capture_output=True, text=True)
    if done.returncode:
        return None, (), (done.stderr.strip().splitlines() or ["no message"])[-1]
    version, *architectures = done.stdout.split()
    return ("" if version == "-" else version), tuple(architectures), ""
