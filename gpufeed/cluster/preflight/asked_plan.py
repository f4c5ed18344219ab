"""What the rules of a run ask Slurm for, as slurm/lines.py gets it out of Snakemake."""

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

    line: the sbatch line without the command that it wraps; "" where `error` says why there is none.
    resources: Snakemake's, by name; runtime in minutes, mem_mb in MB. own: those that the rule itself sets,
    whatever the profile says. misfit: whether it names a partition whose limits it does not keep, by
    the file of slurm-partition-config. last_line, last_runtime: the same at the last retry. count: jobs
    like it.
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
        """GPUs of the job, on all nodes together; where two options ask, the most that one asks for."""
        return max((number for number, _ in requests(self.resources)), default=0)

    @property
    def models(self) -> set[str]:
        """Of its GPUs; "" where any will do."""
        return {model for number, model in requests(self.resources) if number}

    @property
    def qos(self) -> str:
        """The last in the line, which sbatch takes; "" without one."""
        return ["", *re.findall(r" --qos=(\S+)", self.line)][-1]

    @property
    def extra(self) -> list[str]:
        """The words of slurm_extra, the one text of a profile that goes into the line as it is."""
        return words_of(self.resources.get("slurm_extra"))


def requests(resources: Mapping[str, Any]) -> list[tuple[int, str]]:
    """(GPUs on all nodes together, their model or "") by `gpu` with `gpu_model`, and by `gres`.

    Slurm's executor writes --gpus wherever there is a gpu_model.
    """
    model = str(resources.get("gpu_model") or "")
    gpus = whole(resources.get("gpu", 1 if model else 0))
    found = [(gpus, model)] if gpus or model else []
    if gres := GPUS_IN_GRES.fullmatch(str(resources.get("gres") or "")):
        found.append(((whole(resources.get("nodes")) or 1) * int(gres[2] or 1), gres[1] or ""))
    return found


def whole(value: object) -> int:
    """The value as a whole number; 0 for what is none."""
    return int(str(value)) if str(value).isdecimal() else 0


def words_of(text: object) -> list[str]:
    """The words of a text as a shell splits them; by blanks alone where a quote is never closed."""
    try:
        return shlex.split(str(text or ""))
    except ValueError:
        return str(text).split()


@dataclass(frozen=True)
class Plan:
    """A run. jobs: what each rule asks for, each different request once.

    config: as Snakemake merged it. datasets: names of those that are prepared. unheard: (file, key, nearest
    choice or "") of what Snakemake passes over in the profiles. erased: (file, rules) of resources in a
    profile that a later set-resources took away. given: what --config set, as Snakemake read it. profiles:
    their files. logs: slurm-logdir; "" without one. apptainer_args: what Snakemake hands to apptainer.
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


def reason(said: str) -> str:
    """The end of what Snakemake says, without the frames of an error of Python's and without its options."""
    said = re.sub(r"^usage:.*?^(?=\S+: error:)", "", said, flags=re.DOTALL | re.MULTILINE)
    before, frames, after = said.partition("Traceback (most recent call last):\n")
    if frames:
        after = "\n".join(line for line in after.splitlines() if line and not line.startswith(" "))
    return (before + after).strip()[-3000:]


def plan_of(arguments: Sequence[str], folder: Path) -> Plan:
    """The plan of `snakemake ARGUMENTS` in a folder; raises GpufeedError where Snakemake makes none."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "plan.json"
        command = [sys.executable, str(SCRIPT), str(out), "--", *arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if not out.exists():
            raise GpufeedError(
                f"snakemake {shlex.join(arguments)} does not plan:\n{reason(done.stdout + done.stderr)}",
                "a run whose profile, config and targets Snakemake understands",
                "correct what Snakemake says, or see it by itself: the same command with -n",
            )
        raw = json.loads(out.read_text())
        return Plan(**raw | {"jobs": [Ask(**row) for row in raw["jobs"]]})
