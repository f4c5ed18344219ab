"""Checks of the options by which the jobs ask for GPUs: one alone, and one that the executor sees."""

from collections.abc import Iterable, Iterator

from gpufeed.cluster.preflight.asked_extra import out_of_extra
from gpufeed.cluster.preflight.asked_plan import Ask, Plan
from gpufeed.cluster.preflight.finding import Finding
from gpufeed.cluster.preflight.finding_names import rules_of
from gpufeed.cluster.preflight.login_node import Node
from gpufeed.cluster.preflight.site import Site

NUMBER_AND_MODEL = "the number of GPUs is devices in the config, their model sweep_gpu_model"


def gpus_asked_once(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    twice = [ask for ask in plan.first if asks_twice(ask)]
    for ways in sorted({ways_of(ask) for ask in twice}):
        asking = [ask for ask in twice if ways_of(ask) == ways]
        yield Finding(
            f"GPUs asked for twice, by {' and by '.join(ways)}: {rules_of(asking)}",
            "gpu alone, which the rules set: Slurm adds up, overrides or refuses a second option for GPUs",
            asked_once(plan, asking),
        )


def asked_once(plan: Plan, asking: list[Ask]) -> str:
    """What to do about jobs that ask twice, all in the same ways."""
    if asking[0].hidden:
        return f"{gpus_out_of_extra(plan, asking)}; {NUMBER_AND_MODEL}"
    if all(ask.on_several for ask in asking):
        return f"take gpu and gpu_model out of {plan.file('gpu_model', 'gpu')}: several nodes ask by gres"
    return f"take gres out of {plan.file('gres')}; the model goes into sweep_gpu_model"


def asks_twice(ask: Ask) -> bool:
    """Whether it asks for GPUs in several ways."""
    return len(ways_of(ask)) > 1


def ways_of(ask: Ask) -> tuple[str, ...]:
    """How it asks for GPUs: gpu (by gpu_model, too, even with gpu: 0), gres, each option in slurm_extra."""
    refused = "both 'gpu' and 'gres'" in ask.error
    by_name = ask.resources.get("gpu") or ask.resources.get("gpu_model") or refused
    ways = {"gpu": by_name, "gres": ask.gres or refused}
    ways |= {f"{option} in slurm_extra": True for option, _, _ in ask.hidden}
    return tuple(way for way, taken in ways.items() if taken)


def gpus_out_of_extra(plan: Plan, asking: Iterable[Ask]) -> str:
    """What to do about GPUs in slurm_extra."""
    return out_of_extra(plan, (option for ask in asking for option, _, _ in ask.hidden))


def gpus_in_extra(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    """Those that nothing else asks for; `gpus_asked_once` and `rules_without_gpu` tell the others."""
    asking = [ask for ask in plan.first if ask.hidden and ask.wants_gpu and not asks_twice(ask)]
    if asking:
        yield Finding(
            f"GPUs asked for by slurm_extra alone: {rules_of(asking)}",
            "gpu, which the rules set: by it the executor takes partition and tasks",
            f"{gpus_out_of_extra(plan, asking)}, and gpu out of {plan.file('gpu')}; {NUMBER_AND_MODEL}",
        )
