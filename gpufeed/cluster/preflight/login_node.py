"""What the node on which preflight runs has to say: Slurm's answers, modules, torch."""

import getpass
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpufeed.cluster.preflight.apptainer_nv import NAMES
from gpufeed.cluster.preflight.site import ROOT

COMMANDS = ("sbatch", "sacct", "sacctmgr", "scontrol", "sinfo", "squeue")
ASK_TORCH = "import torch; print(torch.version.cuda or '-', torch._C._cuda_getArchFlags() or '')"


@dataclass(frozen=True)
class Node:
    """A node. accounts, partitions: names that Slurm knows for this user; empty where it does not say.
    features: those of the cluster's nodes, which a constraint names; empty where Slurm does not say.

    silent: commands that are there and give no answer. qos: which each account, in lower case, may use.
    min_job_age: seconds for which squeue remembers a job that has ended; None where Slurm does not say.
    cuda: the version that torch was built for, "" for none; None where torch could not be asked.
    architectures: for which it holds code, such as sm_80. modules: loaded ones, as NAME/VERSION.
    checkout: where jobs start. variables: names of those of the shell that sbatch may read, SBATCH_*.
    nv: the shell's variables that stand for apptainer's --nv, by name.
    """

    missing_commands: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    accounts: frozenset[str] = frozenset()
    partitions: frozenset[str] = frozenset()
    features: frozenset[str] = frozenset()
    qos: Mapping[str, frozenset[str]] = field(default_factory=dict)
    inside_job: str | None = None
    min_job_age: int | None = None
    modules: tuple[str, ...] = ()
    python: Path = Path(sys.executable)
    checkout: Path = ROOT
    cuda: str | None = None
    architectures: tuple[str, ...] = ()
    no_torch: str = ""
    commands: Mapping[str, str | None] = field(default_factory=dict)
    variables: tuple[str, ...] = ()
    nv: Mapping[str, str] = field(default_factory=dict)


def look() -> Node:
    """This node."""
    cuda, architectures, no_torch = ask_torch()
    user = f"user={getpass.getuser()}"
    associations = answers("sacctmgr", "-n", "-P", "list", "associations", user, "format=account,qos")
    partitions = answers("sinfo", "-h", "-o", "%R")
    missing = tuple(name for name in COMMANDS if not shutil.which(name))
    said = {"sacctmgr": associations, "sinfo": partitions}
    qos = qos_by_account(associations or frozenset())
    return Node(
        missing_commands=missing,
        silent=tuple(name for name in said if said[name] is None and name not in missing),
        accounts=frozenset(qos),
        partitions=partitions or frozenset(),
        features=features_in(answers("sinfo", "-h", "-o", "%f") or frozenset()),
        qos={account.lower(): names for account, names in qos.items()},
        inside_job=os.environ.get("SLURM_JOB_ID"),
        min_job_age=min_job_age(answers("scontrol", "show", "config") or frozenset()),
        modules=tuple(filter(None, os.environ.get("LOADEDMODULES", "").split(":"))),
        cuda=cuda,
        architectures=architectures,
        no_torch=no_torch,
        commands={name: shutil.which(name) for name in ("apptainer", "singularity", "conda", "mamba")},
        variables=tuple(sorted(name for name in os.environ if name.startswith("SBATCH_"))),
        nv={name: os.environ[name] for name in NAMES if name in os.environ},
    )


def qos_by_account(associations: frozenset[str]) -> dict[str, frozenset[str]]:
    """What each account may use, of lines such as `coc|coc-ice,pace-ice`; an account may stand in several."""
    found: dict[str, frozenset[str]] = {}
    for line in associations:
        account, _, names = line.partition("|")
        if not account:
            continue
        own = frozenset(name.strip() for name in names.split(",") if name.strip())
        found[account] = found.get(account, frozenset()) | own
    return found


def features_in(lines: frozenset[str]) -> frozenset[str]:
    """The names in lines such as `A100,A100-80GB`; `(null)` are nodes without a feature."""
    return frozenset(name for line in lines for name in line.split(",")) - {"(null)", ""}


def answers(*command: str) -> frozenset[str] | None:
    """The lines that a command prints; None where it is missing, refuses or takes longer than 20 s."""
    said = said_by(*command)
    return None if said is None else frozenset(line.strip() for line in said.splitlines() if line.strip())


def said_by(*command: str) -> str | None:
    """What a command prints; None where it is missing, refuses or takes longer than 20 s."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=20, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def min_job_age(config: frozenset[str]) -> int | None:
    """The seconds in `MinJobAge = 300 sec`, a line of Slurm's configuration."""
    found = (re.match(r"MinJobAge\s*=\s*(\d+)", line) for line in config)
    return next((int(match[1]) for match in found if match), None)


def ask_torch() -> tuple[str | None, tuple[str, ...], str]:
    """(CUDA version, architectures, "") of this Python's torch, or (None, (), why it cannot be imported)."""
    done = subprocess.run([sys.executable, "-c", ASK_TORCH], capture_output=True, text=True)
    if done.returncode:
        return None, (), (done.stderr.strip().splitlines() or ["no message"])[-1]
    version, *architectures = done.stdout.split()
    return ("" if version == "-" else version), tuple(architectures), ""
