"""python slurm/lines.py OUT -- SNAKEMAKE ARGUMENTS: what each rule of a run would ask Slurm for, as JSON.

Snakemake itself reads profiles, config and rules and evaluates the resources of all jobs. Where it would
start its scheduler, the functions of its Slurm executor make the sbatch line of each, and the run ends.
Nothing is submitted, locked or written but OUT and Snakemake's own log. It stands outside of gpufeed/, which
never imports Snakemake.

OUT holds the fields of `Plan` and, in `jobs`, of `Ask` (gpufeed/cluster/preflight/asked_plan.py).
"""

import json
import shlex
import sys
from contextlib import suppress
from pathlib import Path

import snakemake.cli  # before snakemake.workflow, which imports it in a circle
import snakemake.workflow
import yaml
from profile_keys import erased, profiles_of, unheard
from snakemake.common.tbdstring import TBDString
from snakemake_executor_plugin_slurm import Executor
from snakemake_executor_plugin_slurm.partitions import read_partition_file
from snakemake_executor_plugin_slurm.submit_string import get_submit_command
from snakemake_executor_plugin_slurm.utils import set_gres_string
from snakemake_executor_plugin_slurm.validation import validate_slurm_extra
from snakemake_interface_common.exceptions import WorkflowError

NOT_ASKED = ("tmpdir", "_cores", "_nodes", "mem", "mem_mib", "disk", "disk_mb", "disk_mib")
OWN = ("gpu", "gpu_model", "gres", "constraint", "nodes", "tasks", "tasks_per_gpu", "cpus_per_task")


def partitions_of(file: Path) -> list:
    """Return the partitions of a file; raises WorkflowError, with the file's name, for an unknown key."""
    try:
        return read_partition_file(file)
    except (TypeError, AttributeError, KeyError) as error:
        raise WorkflowError(f"{file}: {error}; correct its keys, such as max_runtime") from error


class Asking:
    """As much of Slurm's executor as its lines need; it asks Slurm nothing."""

    get_partition_arg = Executor.get_partition_arg

    def __init__(self, workflow):
        self.settings = workflow.executor_settings
        self.logger = snakemake.workflow.logger
        file = getattr(self.settings, "partition_config", None)
        self._partitions = partitions_of(file) if file else None
        self._fallback_partition = ""

    def misfit(self, job) -> bool:
        """Whether a job names a partition of the file whose limits there it does not keep."""
        named = [one for one in self._partitions or () if one.name == job.resources.get("slurm_partition")]
        with suppress(WorkflowError, ValueError):  # where it cannot read what the job asks for
            return any(one.score_job_fit(job) is None for one in named)
        return False

    def line(self, job) -> str:
        """The sbatch line of a job without the command that it wraps."""
        validate_slurm_extra(job)
        account = job.resources.get("slurm_account")
        parameters = {
            "run_uuid": "RUN",
            "slurm_logfile": Path(".snakemake/slurm_logs") / f"rule_{job.name}" / "%j.log",
            "comment_str": f"rule_{job.name}",
            "account": f"-A {account}" if account else "",
            "partition": self.get_partition_arg(job).strip(),
            "workdir": None,
        }
        call = get_submit_command(job, parameters, settings=self.settings) + set_gres_string(job)
        shlex.split(call)  # raises ValueError where slurm_extra has a quote that is never closed
        return " ".join(call.split())


def asked(asking, job, attempt: int) -> dict:
    """Line and resources of a job at its n-th attempt, or why there is no line."""
    job.attempt = attempt
    resources = {name: value for name, value in job.resources.items() if name not in NOT_ASKED}
    unknown = [name for name, value in resources.items() if isinstance(value, TBDString)]
    line, error, misfit = "", "", False
    if unknown:  # as Snakemake's own mem_mb
        error = f"no {', '.join(unknown)}: it would follow from the size of files that are not there yet"
    else:
        try:
            line = asking.line(job)
            misfit = asking.misfit(job)
        except (WorkflowError, ValueError, TypeError) as wrong:
            given = [f"{name}: {resources[name]}" for name in ("gres", "slurm_extra") if resources.get(name)]
            error = "; ".join([str(wrong), *given])
    return {"line": line, "error": error, "misfit": misfit, "resources": resources}


def own(job) -> dict:
    """What the rule itself asks for of OWN, whatever the profile adds."""
    given = job.rule.ruleinfo.resources[1] if job.rule.ruleinfo.resources else {}
    values = {name: given[name] for name in OWN if name in given}
    return {name: value(job.wildcards) if callable(value) else value for name, value in values.items()}


def lines(workflow, arguments: list[str]) -> dict:
    """What OUT holds."""
    asking, retries = Asking(workflow), workflow.execution_settings.retries or 0
    found, datasets = {}, set()
    for job in workflow.dag.needrun_jobs():
        if job.is_local:
            continue
        if job.name == "prepare_dataset":
            datasets.add(job.wildcards.dataset)
        first, last = asked(asking, job, 1), asked(asking, job, 1 + retries)
        later = {"last_line": last["line"], "last_runtime": last["resources"].get("runtime", 0)}
        row = {"rule": job.name, "own": own(job), **first, **later}
        key = json.dumps(row, sort_keys=True, default=str)
        found.setdefault(key, row | {"count": 0})["count"] += 1
    return {
        "executor": workflow.executor_plugin.name,
        "apptainer_args": workflow.deployment_settings.apptainer_args or "",
        "logs": str(getattr(asking.settings, "logdir", None) or ""),
        "unheard": list(unheard(workflow, arguments)),
        "erased": list(erased(workflow, arguments)),
        "profiles": [str(file) for file, _ in profiles_of(arguments)],
        "jobs": sorted(found.values(), key=lambda row: (row["rule"], row["line"])),
        "datasets": sorted(datasets),
        "config": workflow.globals["config"],
        "given": dict(workflow.config_settings.config),
    }


def check_configs(arguments: list[str]) -> None:
    """Raises WorkflowError for a config that is no YAML, with file and line: Snakemake names neither."""
    _, args = snakemake.cli.parse_args(arguments)
    for path in map(Path, ("config/config.yaml", *(args.configfile or ()))):
        if not path.is_file() or path.suffix == ".json":
            continue
        try:
            with path.open(encoding="utf-8") as file:
                yaml.compose(file, yaml.SafeLoader)
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise WorkflowError(f"{path} is no YAML: {error}") from error


def run(out: Path, arguments: list[str]) -> None:
    """Snakemake, up to the point where it would start its first job."""

    class Scheduler:
        def __init__(self, workflow, *_):
            out.write_text(json.dumps(lines(workflow, arguments), default=str))
            raise SystemExit(0)

    snakemake.workflow.JobScheduler = Scheduler
    quiet = ["--quiet", "progress", "rules", "host"]
    snakemake.cli.main([*quiet, "--forceall", "--nolock", "--ignore-incomplete", *arguments])


if __name__ == "__main__":
    try:
        check_configs(sys.argv[3:])
    except WorkflowError as error:
        sys.exit(str(error))
    run(Path(sys.argv[1]), sys.argv[3:])
