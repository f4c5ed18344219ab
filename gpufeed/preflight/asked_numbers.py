"""Checks of how much the jobs ask for: GPUs and cores against what their rules set, and memory."""

from collections.abc import Iterable, Iterator

from gpufeed.preflight.asked_options import asks_twice
from gpufeed.preflight.finding import Finding
from gpufeed.preflight.naming import rules_of
from gpufeed.preflight.node import Node
from gpufeed.preflight.plan import Ask, Plan
from gpufeed.preflight.site import Site

LEAST_MB = 1000


def rules_numbers(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    """None or hidden ones are told by `rules_with_gpu`, `gpus_asked_once` and `gpus_in_extra`."""
    gpus = [
        (ask, ask.own_gpus, ask.gpus)
        for ask in plan.first
        if ask.line and ask.wants_gpu and ask.gpus and not ask.hidden and not asks_twice(ask)
    ]
    yield from unlike(gpus, "GPUs", f"take gpu, gres and nodes out of {plan.file('gpu', 'gres', 'nodes')}")
    cores = [
        (ask, int(ask.own.get("cpus_per_task") or 0), int(asked))
        for ask in plan.first
        if (asked := ask.option("--cpus-per-task", "-c") or "").isdecimal()
    ]
    yield from unlike(cores, "cores of a task", f"take cpus_per_task out of {plan.file('cpus_per_task')}")


def unlike(asking: Iterable[tuple[Ask, int, int]], what: str, remedy: str) -> Iterator[Finding]:
    """Jobs, the number that their rules set (0: none) and the one they ask for, where these are two."""
    by_numbers: dict[tuple[int, int], list[Ask]] = {}
    for ask, own, asked in asking:
        if own and own != asked:
            by_numbers.setdefault((own, asked), []).append(ask)
    for (own, asked), asks in sorted(by_numbers.items(), key=lambda one: one[0]):
        yield Finding(
            f"{what} of {rules_of(asks)}: the rule wants {own}, the line asks for {asked}",
            "the rule's number, by which the job starts its processes",
            f"{remedy}: the config sets it, by devices, nodes, workers and cores_per_job",
        )


def memory(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    asked = [(ask, ask.option("--mem") or "") for ask in plan.first]
    for mb in sorted({int(mb) for _, mb in asked if mb.isdecimal() and 0 < int(mb) < LEAST_MB}):
        yield Finding(
            f"{mb} MB of memory: {rules_of(ask for ask, its in asked if its == str(mb))}",
            f"mem_mb in MB, {LEAST_MB} or more: a job that imports torch takes about as much",
            f"write mem_mb: {1000 * mb} into {plan.file('mem_mb')}, if GB were meant",
            note=True,
        )
