"""Checks of how much the jobs ask for: as many GPUs and cores as their rules want, and memory in MB."""

from collections.abc import Callable, Iterator

from gpufeed.cluster.preflight.asked_options import asks_twice
from gpufeed.cluster.preflight.asked_plan import Ask, Plan, is_number
from gpufeed.cluster.preflight.finding import Finding
from gpufeed.cluster.preflight.finding_names import rules_of
from gpufeed.cluster.preflight.login_node import Node
from gpufeed.cluster.preflight.site import Site

LEAST_MB = 1000  # Python with torch takes more


def gpus_of_rules(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    """Other numbers than the rules'; `rules_with_gpu` and `rules_without_gpu` tell of none."""
    asking = [ask for ask in plan.first if ask.line and gpus_wanted(ask) and ask.gpus and not asks_twice(ask)]
    for said, rules in unlike(asking, gpus_wanted, lambda ask: ask.gpus):
        yield Finding(
            f"GPUs: {said}: {rules}",
            "the number of GPUs that the rules set: more are paid for and idle, with fewer the job fails",
            f"take gpu and gres out of {plan.file('gpu', 'gres', 'set-resources')}; devices in the config is "
            "the number of GPUs",
        )


def cores_of_rules(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    asking = [ask for ask in plan.first if ask.line and cores_wanted(ask) and cores_asked(ask) > 0]
    for said, rules in unlike(asking, cores_wanted, cores_asked):
        yield Finding(
            f"cores: {said}: {rules}",
            "the number of cores that the rules set, by which worker processes are counted",
            f"take cpus_per_task out of {plan.file('cpus_per_task', 'set-resources')}; cores_per_job and "
            "cores_per_cell in the config are the numbers of cores",
        )


def memory(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    little = [ask for ask in plan.first if ask.line and 0 < memory_asked(ask) < LEAST_MB]
    if little:
        given = sorted({memory_asked(ask) for ask in little})
        yield Finding(
            f"mem_mb of {', '.join(map(str, given))}: {rules_of(little)}",
            f"{LEAST_MB} or more: mem_mb is in MB, and Slurm kills a job that needs more than it asked for",
            f"correct mem_mb in {plan.file('mem_mb', 'set-resources')}, such as 32000 for 32 GB",
            note=True,
        )


def unlike(
    asking: list[Ask], wanted: Callable[[Ask], int], asked: Callable[[Ask], int]
) -> Iterator[tuple[str, str]]:
    """(`the rule wants 1, the line asks for 4`, its rules) of each pair of numbers that differ."""
    pairs = [(wanted(ask), asked(ask), ask) for ask in asking]
    for own, given in sorted({(own, given) for own, given, _ in pairs if own != given}):
        rules = rules_of(ask for *pair, ask in pairs if pair == [own, given])
        yield f"the rule wants {own}, the line asks for {given}", rules


def gpus_wanted(ask: Ask) -> int:
    """GPUs of the job, on all nodes together, as the rule itself says."""
    return Ask(ask.rule, "", ask.own).gpus


def cores_wanted(ask: Ask) -> int:
    return number(ask.own.get("cpus_per_task"))


def cores_asked(ask: Ask) -> int:
    """Of each task; below 0 the executor leaves the number to Slurm."""
    return number(ask.resources.get("cpus_per_task"))


def memory_asked(ask: Ask) -> int:
    """MB of the job; 0 where each core has its own."""
    return 0 if ask.resources.get("mem_mb_per_cpu") else number(ask.resources.get("mem_mb"))


def number(value: object) -> int:
    return int(value) if is_number(value) else 0
