"""What profiles say: keys that nobody reads, and resources that a later profile takes away."""

from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

import snakemake.cli
import yaml

# beside those of the rules: what Snakemake, the Slurm executor and gpufeed/workflow/resources.py read
RESOURCES = (
    *("slurm_account", "slurm_partition", "slurm_cluster", "cluster", "clusters", "slurm_extra", "qos"),
    *("constraint", "nodes", "tasks", "tasks_per_node", "tasks_per_gpu", "mpi", "mpi_tasks"),
    *("gpu", "gpu_model", "gres", "cpus_per_task", "cpus_per_gpu", "threads", "runtime"),
    *("mem", "mem_mb", "mem_mib", "mem_mb_per_cpu", "disk", "disk_mb", "disk_mib", "tmpdir"),
    *("sweep_gpu_model", "sweep_constraint"),
)


def profiles_of(arguments: list[str]) -> Iterator[tuple[Path, dict]]:
    """File and content of every profile, in Snakemake's order."""
    _, args = snakemake.cli.parse_args(arguments)
    for profile in (*(args.profile or ()), args.workflow_profile or "profiles/default"):
        if found := snakemake.cli.get_profile_dir(profile):
            yield found[1], yaml.safe_load(found[1].read_text()) or {}


def unheard(workflow, arguments: list[str]) -> Iterator[tuple[str, str, str]]:
    """File, key and nearest choice or "" of options, rules and resources that there are not."""
    parser, _ = snakemake.cli.parse_args(arguments)
    options = {name.lstrip("-") for action in parser._actions for name in action.option_strings}
    options |= {"__use_yte__", "__definitions__", "__variables__"}  # of templates
    resources = {*RESOURCES, *workflow.global_resources}
    for rule in workflow.rules:
        resources |= set(rule.ruleinfo.resources[1]) if rule.ruleinfo.resources else set()
    known = {"option": options, "rule": {rule.name for rule in workflow.rules}, "resource": resources}
    for file, keys in profiles_of(arguments):
        for kind, under, name in names_in(keys):
            if name not in known[kind]:
                near = get_close_matches(name, known[kind], n=1)
                yield str(file), under + name, under + near[0] if near else ""


def names_in(keys: dict) -> Iterator[tuple[str, str, str]]:
    """(kind, what stands before it, name) of each option, rule and resource in a profile."""
    for key, given in keys.items():
        yield "option", "", key
        if key in ("default-resources", "default-res"):  # a map, a list of NAME=VALUE, or one of these
            for entry in [given] if isinstance(given, str) else given or ():
                yield "resource", f"{key}: ", str(entry).partition("=")[0]
        elif key in ("set-resources", "set-threads") and isinstance(given, dict):
            for rule, own in given.items():
                yield "rule", f"{key}: ", rule
                for name in own if isinstance(own, dict) else ():
                    yield "resource", f"{key}: {rule}: ", name


def erased(workflow, arguments: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Rules whose resources in a profile are lost, all or some: the last set-resources counts alone."""
    _, args = snakemake.cli.parse_args(arguments)
    kept, rules = args.set_resources or {}, {rule.name for rule in workflow.rules}
    for file, keys in profiles_of(arguments):
        given = keys.get("set-resources")
        lost = [
            rule
            for rule, resources in (given.items() if isinstance(given, dict) else ())
            if rule in rules and isinstance(resources, dict) and set(resources) - set(kept.get(rule, ()))
        ]
        if lost:
            yield str(file), lost
