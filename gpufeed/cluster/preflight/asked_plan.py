"""What the rules of a run request from Slurm, extracted from Snakemake by slurm/lines.py."""

import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpufeed.core.config import ROOT
from gpufeed.core.errors import GpufeedError

SCRIPT = ROOT / "slurm/lines.py"
GPUS_IN_GRES = re.compile(r"gpu(?::([\w.]*[A-Za-z][\w.]*))?(?::(\d+))?")  # gpu, gpu:2, gpu:H200, gpu:H200:2


@dataclass(frozen=True)
class Ask:
    """One job's request.

    line: the sbatch line without the wrapped command; "" if `error` says why there is none. resources:
    Snakemake's, by name; runtime in minutes, mem_mb in MB. own: the resources set by the rule, whatever the
    profile says. misfit: whether the job exceeds the limits of its partition in the file of
    slurm-partition-config. last_line, last_runtime: the same at the last retry. count: jobs with this
    request.
    """

    rule: str
    line: str
    resources: dict[str, Any]
    own: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    misfit: bool = False
    last_line: str = ""
    last_runtime: int | str = 0
    count: int = 1

    @property
    def gpus(self) -> int:
        """GPUs of the job on all nodes together; if two options request some, the larger number."""
        return max((number for number, _ in requests(self.resources)), default=0)

    @property
    def models(self) -> set[str]:
        """Models of its GPUs; "" for any."""
        return {model for number, model in requests(self.resources) if number}

    @property
    def qos(self) -> str:
        """The last qos in the line, which sbatch uses; "" without one."""
        return ["", *re.findall(r" --qos=(\S+)", self.line)][-1]

    @property
    def extra(self) -> list[str]:
        """The words of slurm_extra, which goes into the line unchanged."""
        return words_of(self.resources.get("slurm_extra"))


def requests(resources: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Return (GPUs on all nodes together, their model or "") for `gpu` with `gpu_model`, and for `gres`.

    Slurm's executor writes --gpus whenever there is a gpu_model.
    """
    model = str(resources.get("gpu_model") or "")
    gpus = whole(resources.get("gpu", 1 if model else 0))
    found = [(gpus, model)] if gpus or model else []
    if gres := GPUS_IN_GRES.fullmatch(str(resources.get("gres") or "")):
        found.append(((whole(resources.get("nodes")) or 1) * int(gres[2] or 1), gres[1] or ""))
    return found


def whole(value: object) -> int:
    """Return the value as an int; 0 if it is not one."""
    return int(str(value)) if str(value).isdecimal() else 0


def words_of(text: object) -> list[str]:
    """Split a text as a shell does; at spaces if a quote is not closed."""
    try:
        return shlex.split(str(text or ""))
    except ValueError:
        return str(text).split()


@dataclass(frozen=True)
class Plan:
    """A run. jobs: what each rule requests, each different request once.

    config: as Snakemake merged it. datasets: names of those that will be prepared. unheard: (file, key,
    nearest choice or "") for keys of profiles that Snakemake ignores. erased: (file, rules) for resources of
    a profile that a later set-resources removed. given: what --config set, as Snakemake read it. profiles:
    their files. logs: slurm-logdir; "" without one. apptainer_args: what Snakemake passes to apptainer.
    """

    executor: str
    jobs: list[Ask]
    config: dict[str, Any]
    datasets: list[str]
    unheard: Sequence[tuple[str, str, str]] = ()
    erased: Sequence[tuple[str, list[str]]] = ()
    given: dict[str, Any] = field(default_factory=dict)
    profiles: Sequence[str] = ()
    logs: str = ""
    apptainer_args: str = ""

    @property
    def folders(self) -> dict[str, Path]:
        """The folders `data` and `results`, by key."""
        return {key: Path(self.config[key]).expanduser().absolute() for key in ("data", "results")}


def reason(said: str) -> str:
    """Return the end of Snakemake's output, without its usage text and the frames of a traceback."""
    said = re.sub(r"^usage:.*?^(?=\S+: error:)", "", said, flags=re.DOTALL | re.MULTILINE)
    before, frames, after = said.partition("Traceback (most recent call last):\n")
    if frames:
        after = "\n".join(line for line in after.splitlines() if line and not line.startswith(" "))
    return (before + after).strip()[-3000:]


def plan_of(arguments: Sequence[str], folder: Path) -> Plan:
    """Return the plan of `snakemake ARGUMENTS` in a folder; raise GpufeedError if Snakemake fails."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "plan.json"
        command = [sys.executable, str(SCRIPT), str(out), "--", *arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if not out.exists():
            raise GpufeedError(
                f"snakemake {shlex.join(arguments)} does not plan:\n{reason(done.stdout + done.stderr)}",
                "a run whose profile, config and targets Snakemake understands",
                "correct what Snakemake reports, or run the same command with -n",
            )
        raw = json.loads(out.read_text())
        return Plan(**raw | {"jobs": [Ask(**row) for row in raw["jobs"]]})
