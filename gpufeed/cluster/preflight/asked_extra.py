"""Checks of options that do not come from resources: those of slurm_extra and of the shell's variables.

The executor puts slurm_extra behind the options that it makes of resources. sbatch takes variables of the
shell as options of every line.
"""

import re
from collections.abc import Iterable, Iterator

from gpufeed.cluster.preflight.asked_plan import Ask, Plan
from gpufeed.cluster.preflight.finding import Finding, rules_of
from gpufeed.cluster.preflight.login_node import Node
from gpufeed.cluster.preflight.sbatch_options import option_values, words_of
from gpufeed.cluster.preflight.site import Site

REQUEUE = "slurm-requeue"
MEMORY = ("--mem", "--mem-per-cpu", "--mem-per-gpu")
# resource, or key of the profile -> the options for it; those for GPUs are in sbatch_options.GPUS_COUNTED_BY
RESOURCE_OPTIONS = {
    "slurm_account": ("--account", "-A"),
    "slurm_partition": ("--partition", "-p"),
    "clusters": ("--clusters", "-M"),
    "runtime": ("--time", "-t"),
    "sweep_constraint": ("--constraint", "-C"),
    "qos": ("--qos", "-q"),
    "mem_mb": MEMORY,
    "nodes": ("--nodes", "-N"),
    REQUEUE: ("--requeue", "--no-requeue"),
    "slurm-reservation": ("--reservation",),
    "tasks": ("--ntasks", "-n"),
    "tasks_per_node": ("--ntasks-per-node",),
    "tasks_per_gpu": ("--ntasks-per-gpu",),
    "cpus_per_task": ("--cpus-per-task", "-c"),
    "cpus_per_gpu": ("--cpus-per-gpu",),
}
HEARD = ("TERM", "SIGTERM", "15")
# Variables of `man sbatch` that change which node, GPUs, cores, memory or time a job gets, or how it runs
NAMED_AS_OPTIONS = (
    *("BATCH", "CLUSTERS", "CONSTRAINT", "CONTAINER", "CORE_SPEC", "CPUS_PER_GPU", "DISTRIBUTION"),
    *("EXCLUSIVE", "GPU_BIND", "GPU_FREQ", "GPUS", "GPUS_PER_NODE", "GPUS_PER_TASK", "GRES", "GRES_FLAGS"),
    *("HINT", "MEM_BIND", "MEM_PER_CPU", "MEM_PER_GPU", "NETWORK", "NO_KILL", "NODES", "OVERCOMMIT"),
    *("PARTITION", "POWER", "QOS", "RESERVATION", "SPREAD_JOB", "THREAD_SPEC", "THREADS_PER_CORE"),
    *("USE_MIN_NODES", "WAIT"),
)
# all ways to write an option that is not named as its variable, or has a letter
WRITTEN = {
    "ARRAY_INX": ("--array", "-a"),
    "CLUSTERS": ("--clusters", "-M"),
    "CONSTRAINT": ("--constraint", "-C"),
    "CORE_SPEC": ("--core-spec", "-S"),
    "DISTRIBUTION": ("--distribution", "-m"),
    "GPUS": ("--gpus", "-G"),
    "MEM_PER_NODE": ("--mem",),
    "NO_KILL": ("--no-kill", "-k"),
    "NO_REQUEUE": ("--no-requeue", "--requeue"),
    "NODES": ("--nodes", "-N"),
    "OVERCOMMIT": ("--overcommit", "-O"),
    "PARTITION": ("--partition", "-p"),
    "QOS": ("--qos", "-q"),
    "REQ_SWITCH": ("--switches",),
    "TIMELIMIT": ("--time", "-t"),
    "WAIT": ("--wait", "-W"),
}
ADDED = {
    f"SBATCH_{name}": WRITTEN.get(name, (f"--{name.lower().replace('_', '-')}",))
    for name in sorted({*NAMED_AS_OPTIONS, *WRITTEN})
}


def in_extra(ask: Ask, *names: str) -> list[tuple[str, str]]:
    """(option, value) of each of these options in its slurm_extra."""
    return list(option_values(words_of(ask.resources.get("slurm_extra")), *names))


def out_of_extra(plan: Plan, options: Iterable[str]) -> str:
    """What to do about options in slurm_extra."""
    return f"take {' and '.join(sorted(set(options)))} out of slurm_extra in {plan.file('slurm_extra')}"


def repeated_by_extra(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    """Options that stand in the line already; `gpus_asked_once` tells those for GPUs."""
    for key, names in RESOURCE_OPTIONS.items():
        lines = [ask for ask in plan.first if ask.line and in_extra(ask, *names)]
        for own, given in sorted({pair for ask in lines if (pair := repeated(ask, names))}):
            rules = rules_of(ask for ask in lines if repeated(ask, names) == (own, given))
            yield Finding(
                f"{given} in slurm_extra behind the line's own {own}: {rules}",
                "one of them: of an option that is repeated sbatch takes the last, whatever the resource says"
                + (f", and two of {', '.join(MEMORY)} it refuses" if names == MEMORY else ""),
                f"{out_of_extra(plan, [re.split('[ =]', given)[0]])}; {resource(plan, key)}",
            )


def repeated(ask: Ask, names: tuple[str, ...]) -> tuple[str, str] | None:
    """(the option of the line itself, that of slurm_extra), as spelt; None but where there are both."""
    own, given = list(option_values(words_of(ask.line), *names)), in_extra(ask, *names)
    return (spelt(*own[0]), spelt(*given[-1])) if given and len(own) > len(given) else None


def spelt(name: str, value: str) -> str:
    """--time=5 or -t 5; options without a value alone."""
    if name in RESOURCE_OPTIONS[REQUEUE]:
        return name
    return f"{name}={value}" if name.startswith("--") else f"{name} {value}"


def instead_of_extra(plan: Plan, asks: list[Ask]) -> str:
    """What to do where the executor refuses an option in slurm_extra."""
    options, keys = set(), []
    for key, names in RESOURCE_OPTIONS.items():
        if found := {option for ask in asks for option, _ in in_extra(ask, *names)}:
            options |= found
            keys.append(key)
    if not options:
        return f"take it out of slurm_extra in {plan.file('slurm_extra')}"
    return f"{out_of_extra(plan, options)}; {resource(plan, *keys)}"


def resource(plan: Plan, *keys: str) -> str:
    """Where it belongs instead."""
    return f"what you mean by it is {' and '.join(keys)} in {plan.file(*keys, 'default-resources')}"


def signal(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    """Of a signal before the time limit: whether the training hears it, and may ask to be requeued."""
    last = [(given[-1][1], ask) for ask in plan.first if (given := in_extra(ask, "--signal"))]
    for value in sorted({value for value, _ in last}):
        flags, _, rest = value.rpartition(":")
        batch, name = "B" in flags.upper(), rest.partition("@")[0]
        if not batch and name.upper() in HEARD:
            continue
        rules = rules_of(ask for its, ask in last if its == value)
        why = "which ends the batch shell and with it the job" if batch else "which ends a training at once"
        yield Finding(
            f"--signal={value} in slurm_extra, {why}: {rules}",
            "SIGTERM to the steps of the job: a training then keeps its state and asks to be started again",
            f"write --signal=TERM@120 into slurm_extra in {plan.file('slurm_extra')}",
        )


def shell(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    """The executor hands them on to sbatch, which takes an option of the line first."""
    lines = [ask for ask in plan.first if ask.line]
    adding = [
        name
        for name in sorted(set(node.variables) & set(ADDED))
        if any(ask.option(*ADDED[name]) is None for ask in lines)
    ]
    if adding:
        yield Finding(
            f"{', '.join(adding)} in the shell: sbatch adds {', '.join(ADDED[name][0] for name in adding)} "
            "to every line without it",
            "jobs that get what their lines say, which is all that preflight sees",
            f"unset {' '.join(adding)}; put what you mean by it into {plan.file('')}",
        )
