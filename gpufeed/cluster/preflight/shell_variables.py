"""Check of the variables of the shell that sbatch takes as options of every line."""

from collections.abc import Iterator

from gpufeed.cluster.preflight.asked_plan import Plan
from gpufeed.cluster.preflight.finding import Finding
from gpufeed.cluster.preflight.login_node import Node
from gpufeed.cluster.preflight.site import Site

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
            f"unset {' '.join(adding)}; what you mean by it belongs into {plan.file('')}",
        )
