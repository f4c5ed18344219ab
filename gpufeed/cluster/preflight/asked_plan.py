"""What the rules of a run ask Slurm for, as slurm/lines.py gets it out of Snakemake."""

import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpufeed.cluster.preflight.sbatch_options import gpus_in_gres, hidden_gpus, option_values, words_of
from gpufeed.core.errors import GpufeedError

SCRIPT = Path(__file__).resolve().parents[3] / "slurm/lines.py"
NUMBERS = ("gpu", "nodes", "tasks", "tasks_per_node", "runtime")  # resources that preflight reckons with


@dataclass(frozen=True)
class Ask:
    """One job's request.

    own: gpu, gres, nodes and cpus_per_task as the rule itself says them, and not the profile.
    line: the sbatch line without the command that it wraps; "" where `error` says why there is none, or
    where resources are `unknown`, since they follow from files that are not there yet.
    resources: Snakemake's, by name; runtime in minutes, mem_mb in MB.
    taking: partitions of slurm-partition-config's file whose limits it keeps.
    """

    rule: str
    line: str
    resources: dict[str, Any]
    count: int = 1
    error: str = ""
    retry: bool = False
    unknown: tuple[str, ...] = ()
    own: dict[str, Any] = field(default_factory=dict)
    taking: tuple[str, ...] = ()

    @property
    def wants_gpu(self) -> bool:
        """Whether the rule itself asks for GPUs, and not the profile alone."""
        return bool(self.own.get("gpu") or self.own.get("gres"))

    @property
    def gpus(self) -> int:
        """GPUs of the job, on all nodes together, whoever asks for them: the rule or the profile.

        Where several options ask, the most that one of them asks for.
        """
        given = int(self.resources.get("gpu") or 0)
        asked = Counter({"": given or self.nodes * sum(number for _, number in self.gres)})
        for option, _, number in self.hidden:
            asked[option] += number
        return max(asked.values())

    @property
    def nodes(self) -> int:
        return int(self.resources.get("nodes") or 1)

    @property
    def on_several(self) -> bool:
        """Whether the rule wants several nodes itself, which it tells Slurm's executor as a job of MPI."""
        return self.nodes > 1 and bool(self.resources.get("mpi"))

    @property
    def gres(self) -> list[tuple[str, int]]:
        """(model, number) of the GPUs of each node that are asked for by gres."""
        return gpus_in_gres(self.resources.get("gres"))

    @property
    def hidden(self) -> list[tuple[str, str, int]]:
        """(option, model, number on all nodes together) of the GPUs that slurm_extra asks for."""
        return hidden_gpus(self.resources)

    @property
    def models(self) -> set[str]:
        """Of its GPUs; "" alone where any will do."""
        by_name = str(self.resources.get("gpu_model") or "")
        named = {by_name if self.resources.get("gpu") else "", *(model for model, _ in self.gres)}
        named |= {model for _, model, number in self.hidden if number}
        return named - {""} or {by_name}

    @property
    def model(self) -> str:
        """Its models as one text; "" where any will do."""
        return ",".join(sorted(self.models))

    @property
    def hours(self) -> float:
        return float(self.resources.get("runtime") or 0) / 60

    @property
    def constraint(self) -> str | None:
        """On its nodes: that of slurm_extra, which stands behind the resource's; None without one."""
        extra = option_values(words_of(self.resources.get("slurm_extra")), "--constraint", "-C")
        given = self.resources.get("constraint")
        return ([None if given is None else str(given)] + [value for _, value in extra])[-1]

    def option(self, *names: str) -> str | None:
        """The value of the last of these sbatch options, which sbatch takes; None where there is none."""
        return next((value for _, value in reversed(list(option_values(words_of(self.line), *names)))), None)


@dataclass(frozen=True)
class Plan:
    """A run. first: what each rule asks for, each different line once; last: the same at the last retry.

    config: as Snakemake merged it. datasets: names of those that are prepared. unheard: (file, key, nearest
    choice or "") of what Snakemake passes over in the profiles. erased: (file, rules) of resources in a
    profile that a later set-resources took away. given: what --config set, as Snakemake read it. written:
    where each key and resource of the profiles stands; "" for what stands nowhere. partitions: those of
    slurm-partition-config's file; none without one. logs: slurm-logdir; "" without one.
    apptainer_args: what Snakemake hands to apptainer.
    """

    executor: str
    first: list[Ask]
    last: list[Ask]
    config: dict[str, Any]
    datasets: list[str]
    retries: int
    unheard: tuple[tuple[str, str, str], ...] = ()
    erased: tuple[tuple[str, list[str]], ...] = ()
    given: dict[str, Any] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)
    partitions: tuple[str, ...] = ()
    logs: str = ""
    apptainer_args: str = ""

    def file(self, *names: str) -> str:
        """Where the first of these keys or resources stands that stands anywhere; else the last profile."""
        found = (self.written[name] for name in (*names, "") if name in self.written)
        return next(found, "slurm/config.yaml")

    @property
    def defaults(self) -> str:
        """Where a resource of every rule is to be written."""
        return f"default-resources of {self.file('default-resources')}"


def read_plan(raw: dict[str, Any]) -> Plan:
    """A Plan of what slurm/lines.py wrote."""

    def ask(row: dict, whole: dict, retry: bool) -> Ask:
        resources, wrong = numbers_of(row["resources"])
        line, error = ("", wrong) if wrong else (row.get("line", ""), row.get("error", ""))
        said = line, resources, whole["count"], error
        unknown, taking = tuple(row["unknown"]), tuple(row["taking"])
        return Ask(whole["rule"], *said, retry, unknown, whole["own"], taking)

    return Plan(
        executor=raw["executor"],
        first=[ask(row, row, False) for row in raw["jobs"]],
        last=[ask(row["last"], row, True) for row in raw["jobs"]],
        config=raw["config"],
        datasets=raw["datasets"],
        retries=raw["retries"],
        unheard=tuple(map(tuple, raw["unheard"])),
        erased=tuple(map(tuple, raw["erased"])),
        given=raw["given"],
        written=raw["written"],
        partitions=tuple(raw["partitions"]),
        logs=raw["logs"],
        apptainer_args=raw["apptainer_args"],
    )


def numbers_of(resources: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """(the resources without those of NUMBERS that are no whole numbers, what is wrong with these or "")."""
    wrong = [name for name in NUMBERS if not is_number(resources.get(name) or 0)]
    said = [f"{name} is {resources[name]}, which is no whole number" for name in wrong]
    return {name: value for name, value in resources.items() if name not in wrong}, "; ".join(said)


def is_number(value: object) -> bool:
    return isinstance(value, int) or str(value).isdecimal()


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
        return read_plan(json.loads(out.read_text()))
