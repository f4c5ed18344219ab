"""python slurm/lines.py OUT -- SNAKEMAKE ARGUMENTS: what each rule of a run would ask Slurm for, as JSON.

Snakemake itself reads profiles, config and rules and evaluates the resources of all jobs. Where it would
start its scheduler, the functions of its Slurm executor make the sbatch line of each, and the run ends.
Nothing is submitted, locked or written but OUT and Snakemake's own log. It stands outside of gpufeed/, which
never imports Snakemake.

OUT: `jobs` (rule, line or error, how many with it, GPUs and cores that the rule itself wants, resources,
partitions that take it, the same for the last retry), `partitions` (those of slurm-partition-config's file),
`logs` (slurm-logdir), `apptainer_args`, `local` (rules that run where snakemake does), `datasets` (to make),
`config`, `given` (what --config set), `retries`, `executor`, `unheard` (file, key and nearest choice of what
a profile says and Snakemake passes over without a word), `erased` (file and rules whose resources there a
later set-resources took away), `written` (the profile in which each key and resource stands).
"""

import json
import shlex
import sys
from pathlib import Path

import snakemake.cli  # before snakemake.workflow, which imports it in a circle
import snakemake.workflow
import yaml
from profile_keys import erased, unheard, written
from snakemake.common.tbdstring import TBDString
from snakemake_executor_plugin_slurm import Executor
from snakemake_executor_plugin_slurm.partitions import read_partition_file
from snakemake_executor_plugin_slurm.submit_string import get_submit_command
from snakemake_executor_plugin_slurm.utils import set_gres_string
from snakemake_executor_plugin_slurm.validation import validate_slurm_extra
from snakemake_interface_common.exceptions import WorkflowError

NOT_ASKED = ("tmpdir", "_cores", "_nodes", "mem", "mem_mib", "disk", "disk_mb", "disk_mib")
OWN = ("gpu", "gres", "nodes", "cpus_per_task")


def partitions_of(file: Path) -> list:
    """The partitions of a file; raises WorkflowError, with the file's name, for a key that there is not."""
    try:
        return read_partition_file(file)
    except (TypeError, AttributeError, KeyError) as error:
        raise WorkflowError(
            f"{file}: {error}; correct the keys of its partitions, such as max_runtime"
        ) from error


class Asking:
    """As much of Slurm's executor as its lines need; it asks Slurm nothing."""

    get_partition_arg = Executor.get_partition_arg

    def __init__(self, workflow):
        self.settings = workflow.executor_settings
        self.logger = snakemake.workflow.logger
        file = getattr(self.settings, "partition_config", None)
        self._partitions = partitions_of(file) if file else None
        self._fallback_partition = ""

    def partitions(self) -> list[str]:
        """Those of the file; none without one."""
        return [partition.name for partition in self._partitions or ()]

    def taking(self, job) -> list[str]:
        """Those of the file whose limits a job keeps; all where the executor cannot read what it asks for."""
        try:
            return [one.name for one in self._partitions or () if one.score_job_fit(job) is not None]
        except (WorkflowError, ValueError):
            return self.partitions()  # with a slurm_partition it makes a line all the same

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
        try:
            shlex.split(call)
        except ValueError as error:
            raise WorkflowError(f"{error} in slurm_extra: {job.resources.get('slurm_extra')}") from error
        return " ".join(call.split())


def asked(asking, job, attempt: int) -> dict:
    """Line and resources of a job at its n-th attempt, or why there is no line.

    unknown: resources that follow from the size of files which are not there yet, as Snakemake's own mem_mb.
    """
    job.attempt = attempt
    given = {name: value for name, value in job.resources.items() if name not in NOT_ASKED}
    unknown = [name for name, value in given.items() if isinstance(value, TBDString)]
    resources = {
        name: value if isinstance(value, (int, str)) else str(value)
        for name, value in given.items()
        if name not in unknown
    }
    found = {"resources": resources, "threads": job.threads, "unknown": unknown, "taking": []}
    if unknown:
        return found
    try:
        return found | {"line": asking.line(job), "taking": asking.taking(job)}
    except WorkflowError as error:
        return found | {"error": str(error)}
    except (ValueError, TypeError) as error:
        gres = f"a number is missing in gres {given['gres']}: " if given.get("gres") else ""
        return found | {"error": f"{gres}{type(error).__name__}: {error}"}


def own(job) -> dict:
    """What the rule itself asks for of OWN, whatever the profile adds."""
    given = job.rule.ruleinfo.resources[1] if job.rule.ruleinfo.resources else {}
    values = {name: given[name] for name in OWN if name in given}
    return {name: value(job.wildcards) if callable(value) else value for name, value in values.items()}


def lines(workflow, arguments: list[str]) -> dict:
    """What OUT holds."""
    asking, retries = Asking(workflow), workflow.execution_settings.retries or 0
    found, local, datasets = {}, set(), set()
    for job in workflow.dag.needrun_jobs():
        if job.is_local:
            local.add(job.name)
            continue
        if job.name == "prepare_dataset":
            datasets.add(job.wildcards.dataset)
        first, last = asked(asking, job, 1), asked(asking, job, 1 + retries)
        row = {"rule": job.name, "own": own(job), **first, "last": last}
        key = json.dumps(row, sort_keys=True)
        found.setdefault(key, row | {"count": 0})["count"] += 1
    return {
        "executor": workflow.executor_plugin.name,
        "partitions": asking.partitions(),
        "apptainer_args": workflow.deployment_settings.apptainer_args or "",
        "logs": str(getattr(asking.settings, "logdir", None) or ""),
        "unheard": list(unheard(workflow, arguments)),
        "erased": list(erased(workflow, arguments)),
        "written": written(arguments),
        "jobs": sorted(found.values(), key=lambda row: (row["rule"], row.get("line", ""))),
        "local": sorted(local),
        "datasets": sorted(datasets),
        "config": workflow.globals["config"],
        "given": dict(workflow.config_settings.config),
        "retries": retries,
    }


def check_configs(arguments: list[str]) -> None:
    """Raises WorkflowError for a config that is no YAML, with file and line: Snakemake names neither."""
    _, args = snakemake.cli.parse_args(arguments)
    for path in (Path("config/config.yaml"), *(args.configfile or ())):
        try:
            with open(path, encoding="utf-8") as file:
                yaml.compose(file, yaml.SafeLoader)
        except OSError:
            continue  # Snakemake says it
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            if not is_json(path):
                raise WorkflowError(f"{path} is no YAML: {error}") from error


def is_json(path: Path) -> bool:
    """Whether a file is JSON, which may have tabs where YAML has none."""
    try:
        json.loads(path.read_bytes())
    except ValueError:
        return False
    return True


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
