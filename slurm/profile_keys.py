"""What profiles say: keys that nobody reads, resources that a later one takes away, and where each stands."""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path

import snakemake.cli
import yaml

OF_RULES = ("set-resources", "set-threads")
DEFAULTS, BY_RULE = ("default-resources", "default-res"), "set-resources"
COMMAND_LINE = "the command line"

# beside those of the rules: what Snakemake, the Slurm executor and gpufeed/workflow/resources.py read
RESOURCES = (
    *("slurm_account", "slurm_partition", "slurm_cluster", "cluster", "clusters", "slurm_extra", "qos"),
    *("constraint", "nodes", "tasks", "tasks_per_node", "tasks_per_gpu", "mpi", "mpi_tasks"),
    *("gpu", "gpu_model", "gres", "cpus_per_task", "cpus_per_gpu", "threads", "runtime"),
    *("mem", "mem_mb", "mem_mib", "mem_mb_per_cpu", "disk", "disk_mb", "disk_mib", "tmpdir"),
    *("sweep_gpu_model", "sweep_constraint"),
)


def profiles_of(args) -> Iterator[tuple[Path, dict]]:
    """File and content of every profile, in Snakemake's order."""
    for profile in (*(args.profile or ()), args.workflow_profile or "profiles/default"):
        if found := snakemake.cli.get_profile_dir(profile):
            yield found[1], yaml.safe_load(found[1].read_text()) or {}


def nearest(name: str, choices: Iterable[str]) -> str:
    """The choice that looks most like a name; "" where none does."""
    return next(iter(get_close_matches(name, list(choices), n=1)), "")


def unheard(workflow, arguments: list[str]) -> Iterator[tuple[str, str, str]]:
    """File, key and nearest choice of options, rules and resources that there are not."""
    parser, args = snakemake.cli.parse_args(arguments)
    options = {name.lstrip("-") for action in parser._actions for name in action.option_strings}
    rules = {rule.name for rule in workflow.rules}
    known = known_resources(workflow)
    told = set()
    for file, keys in profiles_of(args):
        yield from ((str(file), key, nearest(key, options)) for key in keys if key not in options)
        yield from ((str(file), *wrong) for wrong in wrong_rules(keys, rules))
        names = resources_in(keys)
        told |= {name for _, name in names}
        yield from ((str(file), *wrong) for wrong in wrong_resources(names, known))
    rest = [(under, name) for under, name in resources_of(args) if name not in told]
    yield from ((COMMAND_LINE, *wrong) for wrong in wrong_resources(rest, known))


def wrong_rules(keys: dict, rules: set[str]) -> Iterator[tuple[str, str]]:
    """Key and nearest choice of rules that the workflow has not."""
    for key in OF_RULES:
        for rule in keys[key] if isinstance(keys.get(key), dict) else ():
            if rule not in rules:
                yield f"{key}: {rule}", prefixed(key, nearest(rule, rules))


def wrong_resources(names: list[tuple[str, str]], known: set[str]) -> Iterator[tuple[str, str]]:
    """Key and nearest choice of resources that nobody reads; names: (under which key, name)."""
    for under, name in names:
        if name not in known:
            yield f"{under}: {name}", prefixed(under, nearest(name, known))


def prefixed(under: str, near: str) -> str:
    return f"{under}: {near}" if near else ""


def known_resources(workflow) -> set[str]:
    """Those that somebody reads: RESOURCES, those of the rules, and those that the run has a limit for."""
    of_rules = {
        name for rule in workflow.rules if rule.ruleinfo.resources for name in rule.ruleinfo.resources[1]
    }
    return {*RESOURCES, *of_rules, *workflow.global_resources}


def resources_in(keys: dict) -> list[tuple[str, str]]:
    """(under which key, name) of all resources in a profile: maps, lists of NAME=VALUE, or one of these."""
    found = []
    for key in DEFAULTS:
        found += [(key, entry.partition("=")[0]) for entry in entries(keys.get(key))]
    given = keys.get(BY_RULE)
    if isinstance(given, dict):
        by_rule = [(rule, name) for rule, own in given.items() if isinstance(own, dict) for name in own]
    else:
        by_rule = [entry.partition("=")[0].partition(":")[::2] for entry in entries(given)]
    return found + [(f"{BY_RULE}: {rule}", name) for rule, name in by_rule]


def entries(given: object) -> list[str]:
    """The keys of a map, the entries of a list, or one entry."""
    return [given] if isinstance(given, str) else [str(entry) for entry in given or ()]


def resources_of(args) -> list[tuple[str, str]]:
    """(under which key, name) of all resources that hold: those of the command line among them."""
    by_rule = [(rule, name) for rule, own in (args.set_resources or {}).items() for name in own]
    return [(DEFAULTS[0], name) for name in args.default_resources or ()] + [
        (f"{BY_RULE}: {rule}", name) for rule, name in by_rule
    ]


def erased(workflow, arguments: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Rules whose resources in a profile are lost, all or some: the last set-resources counts alone."""
    _, args = snakemake.cli.parse_args(arguments)
    kept, rules = args.set_resources or {}, {rule.name for rule in workflow.rules}
    for file, keys in profiles_of(args):
        given = keys.get(BY_RULE)
        lost = [
            rule
            for rule, resources in (given.items() if isinstance(given, dict) else ())
            if rule in rules and isinstance(resources, dict) and set(resources) - set(kept.get(rule, ()))
        ]
        if lost:
            yield str(file), lost


def written(arguments: list[str]) -> dict[str, str]:
    """Where each key and resource stands that holds: a profile, or COMMAND_LINE.

    "" has the last of --profile, for what stands nowhere.
    """
    _, args = snakemake.cli.parse_args(arguments)
    profiles = list(profiles_of(args))
    given = profiles[: len(args.profile or ())]
    last = {key: (str(file), keys) for file, keys in profiles for key in keys}
    options = {word.partition("=")[0].removeprefix("--") for word in arguments if word.startswith("--")}
    told = {key for key in OF_RULES if key in options}
    told |= set(DEFAULTS) if options & set(DEFAULTS) else set()  # two names of one option
    last |= {key: (COMMAND_LINE, {}) for key in told}
    found = {"": str(given[-1][0])} if given else {}
    found |= {key: file for key, (file, _) in last.items()}
    for key in (*DEFAULTS, BY_RULE):
        file, keys = last.get(key, ("", {}))
        found |= {name: file for _, name in resources_in({key: keys.get(key)})}
    here = [name for under, name in resources_of(args) if under.partition(":")[0] in told]
    return found | dict.fromkeys(here, COMMAND_LINE)
