"""Checks of requests that Slurm accepts silently, although the run would fail or waste resources."""

import re
from collections.abc import Callable, Iterator

from gpufeed.cluster.preflight.asked_plan import Ask, Plan, requests, whole
from gpufeed.cluster.preflight.finding import Finding
from gpufeed.cluster.preflight.login_node import Node
from gpufeed.cluster.preflight.site import Site

Check = Callable[[Plan, Site, Node], Iterator[Finding]]
Faults = Callable[[Ask, Site], Iterator[str]]
# setting -> sbatch options that must not replace it in slurm_extra
INSTEAD_OF_EXTRA = {
    "slurm_account": "--account -A",
    "slurm_partition": "--partition -p",
    "runtime": "--time -t",
    "sweep_constraint": "--constraint -C",
    "qos": "--qos -q",
    "mem_mb": "--mem --mem-per-cpu --mem-per-gpu",
    "nodes of a block": "--nodes -N --ntasks -n --ntasks-per-node --ntasks-per-gpu",
    "slurm-requeue": "--requeue --no-requeue",
    "cores_per_job": "--cpus-per-task -c --cpus-per-gpu",
    "devices of a block": "--gpus -G --gres --gpus-per-node --gpus-per-task --gpus-per-socket",
}
INSTEAD = {option: key for key, options in INSTEAD_OF_EXTRA.items() for option in options.split()}
HEARD = re.compile(r"(R:)?((SIG)?TERM|15)(@\d+)?", re.IGNORECASE)
# variables that the options of a line override, or that change no job
HARMLESS = re.compile(
    "SBATCH_(ACCOUNT|PARTITION|QOS|TIMELIMIT|NODES|MEM_PER_NODE|(NO_)?REQUEUE|DEBUG|WCKEY|EXPORT|JOB_NAME|OUTPUT"
    "|ERROR|COMMENT|OPEN_MODE|ACCTG_FREQ|PROFILE)"
)
LEAST_MB = 1000  # Python with torch takes more


def executor(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    if plan.executor != "slurm":
        yield Finding(
            f"an executor other than Slurm's: {plan.executor}",
            "executor: slurm",
            "leave out -n: preflight starts nothing"
            if plan.executor == "dryrun"
            else "give --profile slurm before the site's profile, and no --executor",
        )


def profiles(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    for file, key, nearest in plan.unheard:
        yield Finding(
            f"{key} in {file}, which Snakemake silently ignores",
            "options of Snakemake, rules of this workflow, and resources that it or Slurm's executor reads",
            f"write {nearest} instead" if nearest else "correct it, or take it out",
        )


def set_resources(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    for file, rules in plan.erased:
        yield Finding(
            f"resources in {file} lost by a later set-resources: {', '.join(sorted(rules))}",
            "one set-resources: Snakemake uses only that of the last profile, or of the command line",
            f"put the lines of the later one into {file} and take it out, or repeat all of {file} there",
        )


def shell(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    adding = [name for name in node.variables if not HARMLESS.fullmatch(name)]
    if adding:
        yield Finding(
            f"{', '.join(adding)} in the shell: sbatch adds these options to every line without them",
            "jobs that follow their lines, which is all that preflight sees",
            f"unset {' '.join(adding)}; use the profile instead",
        )


def each_job(expected: str, remedy: str, note: bool = False) -> Callable[[Faults], Check]:
    """Make a check from a function that yields a job's faults; report each fault once, with its rules."""

    def make(faults: Faults) -> Check:
        def check(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
            found: dict[str, set[str]] = {}
            for ask in plan.jobs:
                for fault in faults(ask, site):
                    found.setdefault(fault, set()).add(ask.rule)
            for fault in sorted(found):
                yield Finding(f"{fault}: {', '.join(sorted(found[fault]))}", expected, remedy, note)

        return check

    return make


@each_job(
    "resources that Slurm's executor turns into an sbatch line",
    "correct them under default-resources or set-resources",
)
def without_line(ask: Ask, site: Site) -> Iterator[str]:
    if ask.error:
        yield f"no sbatch line, {ask.error}"


@each_job(
    "a partition that fits the job: Slurm may accept a job beyond its time limit, and never start it",
    "correct slurm_partition, or the file that slurm-partition-config names",
)
def partition(ask: Ask, site: Site) -> Iterator[str]:
    if ask.line and " -p " not in ask.line:
        yield "no partition"
    if ask.misfit:
        name = ask.resources["slurm_partition"]
        yield f"partition {name}, whose limits in the file the job exceeds"


@each_job("MB: Python with torch takes more than 1,000", "multiply by 1,000 if GB were meant", note=True)
def memory(ask: Ask, site: Site) -> Iterator[str]:
    if 0 < whole(ask.resources.get("mem_mb")) < LEAST_MB:
        yield f"mem_mb: {ask.resources['mem_mb']}"


@each_job("an account that exists", "export SBATCH_ACCOUNT=..., or write it into the profile")
def account(ask: Ask, site: Site) -> Iterator[str]:
    if str(ask.resources.get("slurm_account") or "").startswith("$"):
        yield f"the account {ask.resources['slurm_account']}, a variable that is not set"


@each_job("jobs that Slurm starts again", "write slurm-requeue: true into the profile")
def preempted(ask: Ask, site: Site) -> Iterator[str]:
    limits = site.qos.get(ask.qos)
    if limits and limits.preempted_after_hours is not None and "--requeue" not in ask.line:
        yield f"no --requeue under qos {ask.qos}, which may preempt after {limits.preempted_after_hours:g} h"


@each_job(
    "jobs within the limits of the qos, which may count GPUs x hours",
    "correct runtime, in minutes, or the GPUs (devices and nodes in the config), or take another qos",
)
def time(ask: Ask, site: Site) -> Iterator[str]:
    """Check time limits: Slurm lets a job beyond them wait forever, unless the qos has DenyOnLimit."""
    if ask.line and not whole(ask.resources.get("runtime")):
        yield "no time limit"
    if ask.line and site.qos and ask.qos not in site.qos:
        yield f"qos {ask.qos or 'missing'}: no limits in site.yaml, which has {', '.join(site.qos)}"
    limits = site.qos.get(ask.qos)
    for when, runtime in (("", ask.resources.get("runtime")), (" at the last retry", ask.last_runtime)):
        hours = whole(runtime) / 60
        if limits and limits.hours is not None and hours > limits.hours:
            yield f"{hours:g} h{when}, where {limits.hours:g} h are allowed"
            return  # a retry would be even longer
        if limits and limits.gpu_hours is not None and ask.gpus * hours > limits.gpu_hours:
            yield (
                f"{ask.gpus} GPUs for {hours:g} h{when} are {ask.gpus * hours:g} GPU-hours, where "
                f"{limits.gpu_hours:g} are allowed, {limits.gpu_hours / ask.gpus:g} h"
            )
            return


@each_job(
    "what the rules set: more GPUs would be idle, results of different GPUs do not compare, workers depend "
    "on the cores, GPUs without nodes: 1 may be spread, and nodes without a GPU may lack a feature",
    "write a sweep_gpu_model that is missing; remove all else from the profile, except nodes: 1 under "
    "default-resources. Use devices, nodes and cores_per_job in the config; sweep_gpu_model and "
    "sweep_constraint apply only to jobs with a GPU",
)
def set_by_rules(ask: Ask, site: Site) -> Iterator[str]:
    wanted, given = requests(ask.own), requests(ask.resources)
    if any(number and not model for number, model in wanted):
        yield "no model of GPU (sweep_gpu_model)"
    if len(given) > 1:
        yield f"GPUs asked for twice, {spelt(given[:1])} by gpu and {spelt(given[1:])} by gres"
    elif spelt(wanted) != spelt(given):
        yield f"GPUs: the rule wants {spelt(wanted)}, the job asks for {spelt(given)}"
    own = {"nodes": 1} | ask.own
    resources = ask.resources if ask.gpus > 1 else {"nodes": 1} | ask.resources
    names = ["constraint", "nodes", *(["cpus_per_task"] if "cpus_per_task" in own else [])]
    for name in [*names, *(["tasks", "tasks_per_gpu"] if wanted else [])]:
        pair = [str(of.get(name) or "none") for of in (own, resources)]
        if pair[0] != pair[1]:
            yield f"{name}: the rule wants {pair[0]}, the job asks for {pair[1]}"


def spelt(asked: list[tuple[int, str]]) -> str:
    """Return requests in words, such as `2 x H200`, or `none`."""
    return " and ".join(f"{number} x {model or 'any'}" for number, model in asked if number) or "none"


@each_job(
    "one form for the whole sweep, so that results compare",
    "write one of them as sweep_constraint under default-resources",
    note=True,
)
def forms(ask: Ask, site: Site) -> Iterator[str]:
    for model in ask.models if not ask.resources.get("constraint") else ():
        features = [feature for feature, of in site.constraints.items() if of == model]
        if len(features) > 1:
            yield f"GPU {model} in any of its forms, {', '.join(features)}"


@each_job(
    "resources, which the executor sees: sbatch uses the last of repeated options",
    "remove it from slurm_extra",
)
def extra(ask: Ask, site: Site) -> Iterator[str]:
    for word in ask.extra:
        option = word.partition("=")[0] if word.startswith("--") else word[:2]
        if option in INSTEAD:
            yield f"{option} in slurm_extra instead of {INSTEAD[option]}"


@each_job(
    "SIGTERM to the steps of the job: a training then saves its state and asks for a requeue",
    "write --signal=TERM@120 into slurm_extra",
)
def signal(ask: Ask, site: Site) -> Iterator[str]:
    for value in re.findall(r"--signal[= ](\S+)", " ".join(ask.extra))[-1:]:
        batch = "B" in value.rpartition(":")[0].upper()
        why = "which ends the batch shell and so the job" if batch else "which ends a training at once"
        if not HEARD.fullmatch(value):
            yield f"--signal={value} in slurm_extra, {why}"


CHECKS = (
    executor, profiles, set_resources, without_line, partition, memory, account, preempted, time,
    set_by_rules, forms, extra, signal, shell,
)  # fmt: skip
