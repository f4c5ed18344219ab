"""Checks of the GPUs, cores and memory that the jobs ask for.

GPUs: by one option alone that the executor sees, how many, of which model, on how many nodes. GPUs and cores
are to be as many as the rules want; memory is in MB.
"""

import re
from collections.abc import Callable, Iterable, Iterator

from gpufeed.cluster.preflight.asked_extra import RESOURCE_OPTIONS, in_extra, out_of_extra
from gpufeed.cluster.preflight.asked_plan import Ask, Plan, is_number
from gpufeed.cluster.preflight.finding import Finding, nearest_choice, rules_of
from gpufeed.cluster.preflight.login_node import Node
from gpufeed.cluster.preflight.sbatch_options import gpus_by_option, words_of
from gpufeed.cluster.preflight.site import Site

NUMBER_AND_MODEL = "the number of GPUs is devices in the config, their model sweep_gpu_model"
LEAST_MB = 1000  # Python with torch takes more


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


def one_model(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    asking = [ask for ask in plan.first if ask.gpus and ask.wants_gpu]
    models = {model for ask in asking for model in ask.models}
    for model in sorted(models - set(site.gpus) - {""}):
        yield Finding(
            f"GPU {model}",
            f"one of {site.name}'s: {', '.join(site.gpus) or 'none, by gpus in its site.yaml'}",
            f"write sweep_gpu_model: {nearest_choice(model, site.gpus)} into "
            + plan.file("gpu_model", "sweep_gpu_model", "default-resources")
            if site.gpus
            else "write it into gpus of the site's site.yaml, with its compute capability",
        )
    if len(models) > 1:
        by = {
            model or "any": rules_of(ask for ask in asking if model in ask.models) for model in sorted(models)
        }
        yield Finding(
            "several models of GPU in one sweep: "
            + "; ".join(f"{model}: {rules}" for model, rules in by.items()),
            "one model: numbers of different GPUs do not compare",
            f"take gpu_model, gres and GPUs of slurm_extra out of set-resources in "
            f"{plan.file('set-resources')}, and name one as sweep_gpu_model under {plan.defaults}",
        )
    elif models == {""}:
        yield Finding(
            f"no model of GPU: {rules_of(asking)}",
            "one model for the whole sweep: numbers of different GPUs do not compare",
            f"write sweep_gpu_model under {plan.defaults}: {', '.join(site.gpus)}",
        )


def constraint(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    yield from constraint_without_gpu(plan)
    constrained = [ask for ask in plan.first if ask.wants_gpu and ask.constraint]
    asking = {(ask.constraint, model) for ask in constrained for model in ask.models}
    features = sorted({feature for feature, _ in asking})
    for feature in features:
        here = [ask for ask in constrained if ask.constraint == feature]
        yield from unknown_feature(feature, here, plan, site, node)
    for feature, model in sorted(asking):
        if model and site.constraints.get(feature, model) != model:
            yield Finding(
                f"constraint {feature} with GPU {model}: no node has both",
                f"sweep_gpu_model: {site.constraints[feature]}",
                "change sweep_gpu_model or sweep_constraint in "
                + plan.file("sweep_constraint", "constraint", "default-resources")
                + also_out_of_extra(plan, (ask for ask in constrained if ask.constraint == feature)),
            )
    yield from forms(plan, site)
    if len(features) > 1:
        yield Finding(
            f"several constraints in one sweep: {', '.join(features)}",
            "one: numbers of different GPUs do not compare",
            f"name one as sweep_constraint under {plan.defaults}",
        )


def constraint_without_gpu(plan: Plan) -> Iterator[Finding]:
    """Those that reach rules without a GPU, whose partition may have no such node, and empty ones."""
    file = plan.file("constraint", "default-resources")
    asking = [ask for ask in plan.first if not ask.wants_gpu and ask.constraint]
    if asking:
        yield Finding(
            f"a constraint for rules that need no GPU: {rules_of(asking)}",
            "constraints for jobs with a GPU alone: nodes without one may lack the feature",
            f"call it sweep_constraint in {file}: rules give it to jobs with a GPU alone"
            + also_out_of_extra(plan, asking),
        )
    empty = [ask for ask in plan.first if ask.constraint == ""]
    if empty:
        yield Finding(
            f"an empty constraint: {rules_of(empty)}",
            "the name of a feature, or no constraint",
            f"take constraint out of {file}" + also_out_of_extra(plan, empty),
        )


def also_out_of_extra(plan: Plan, asking: Iterable[Ask]) -> str:
    """What to do beside, where a constraint is one of slurm_extra."""
    options = [option for ask in asking for option, _ in in_extra(ask, *RESOURCE_OPTIONS["sweep_constraint"])]
    return f", and {out_of_extra(plan, options)}" if options else ""


def unknown_feature(feature: str, asking: list[Ask], plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    """Names in a constraint, such as `A100-40GB|A100-80GB`, that sinfo does not list, or site.yaml."""
    known = node.features or frozenset(site.constraints)
    for name in re.findall(r"[^&|,()\[\]\s]+", re.sub(r"\*\d+", "", feature)):
        if name in known:
            continue
        if node.features:
            yield Finding(
                f"constraint {name}, which no node of this cluster has",
                f"one of: {', '.join(sorted(known))}",
                f"write sweep_constraint: {nearest_choice(name, sorted(known))} into "
                + plan.file("sweep_constraint", "constraint", "default-resources")
                + also_out_of_extra(plan, asking),
            )
        else:
            yield Finding(
                f"constraint {name}",
                f"one that preflight knows of {site.name}: {', '.join(site.constraints) or 'none'}",
                'see `sinfo -o "%P %f"` on the login node; add it to site.yaml if it is there',
                note=True,
            )


def forms(plan: Plan, site: Site) -> Iterator[Finding]:
    """A model that the site has in several forms, where no constraint picks one."""
    open_to_all = [ask for ask in plan.first if ask.gpus and not ask.constraint]
    for model in sorted({model for ask in open_to_all for model in ask.models}):
        features = [feature for feature, of in site.constraints.items() if of == model]
        if len(features) > 1:
            rules = rules_of(ask for ask in open_to_all if model in ask.models)
            yield Finding(
                f"GPU {model} in any of its forms: {rules}",
                f"one of {', '.join(features)} for the whole sweep: their numbers do not compare",
                f"write sweep_constraint: {features[-1]} under {plan.defaults}",
                note=True,
            )


def rules_without_gpu(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    asking = [ask for ask in plan.first if not ask.wants_gpu and gpu_in_line(ask)]
    hidden = [ask for ask in asking if ask.hidden]
    remedies = [gpus_out_of_extra(plan, hidden)] if hidden else []
    if len(hidden) < len(asking):
        remedies.append(
            f"take gpu and gres out of {plan.file('gpu', 'gres', 'gpu_model')}; call gpu_model "
            "sweep_gpu_model: rules give it to jobs with a GPU alone"
        )
    if asking:
        yield Finding(
            f"rules that need no GPU ask for one: {rules_of(asking)}",
            "no gpu, gpu_model or gres in default-resources, which reach every rule, or set-resources",
            ", and ".join(remedies),
        )


def gpu_in_line(ask: Ask) -> bool:
    """Whether the line asks for GPUs."""
    return any(number for _, _, number in gpus_by_option(words_of(ask.line)))


def rules_with_gpu(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    whole = [ask for ask in plan.first if ask.wants_gpu and not ask.error]
    asking = [ask for ask in whole if not ask.gpus and not gpu_in_line(ask)]
    if asking:
        yield Finding(
            f"rules that need a GPU ask for none: {rules_of(asking)}",
            "the number of GPUs that the rules set",
            f"take gpu out of {plan.file('gpu')}: without a GPU the job measures the CPU or is skipped",
        )


def one_node(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    here = [
        ask
        for ask in plan.first
        if ask.line and not ask.on_several and ask.option("--nodes", "-N") not in ("1", "1-1")
    ]
    spread = [ask for ask in here if ask.gpus > 1]
    if spread:
        yield Finding(
            f"several GPUs without --nodes=1: {rules_of(spread)}",
            "all GPUs of a job on one node: Slurm may spread --gpus over several, and the job then fails",
            f"no nodes under set-resources, and nodes: 1 under {plan.defaults}",
        )
    wide = [ask for ask in here if ask.gpus <= 1]
    for number in sorted({ask.option("--nodes", "-N") or "" for ask in wide} - {""}):
        yield Finding(
            f"--nodes={number}: {rules_of(ask for ask in wide if ask.option('--nodes', '-N') == number)}",
            "one node for jobs that run on one: Slurm refuses fewer GPUs than nodes, and the rest would idle",
            f"no nodes under set-resources, and nodes: 1 under {plan.defaults}",
        )
    tasks = [ask for ask in plan.first if ask.gpus and ask.option("--ntasks-per-gpu")]
    if tasks:
        yield Finding(
            f"tasks for jobs with GPUs: {rules_of(tasks)}",
            "one task, which starts the processes of all GPUs of its node itself",
            f"take tasks and tasks_per_gpu out of {plan.file('tasks_per_gpu', 'tasks')}",
        )


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
    return number_or_zero(ask.own.get("cpus_per_task"))


def cores_asked(ask: Ask) -> int:
    """Of each task; below 0 the executor leaves the number to Slurm."""
    return number_or_zero(ask.resources.get("cpus_per_task"))


def memory_asked(ask: Ask) -> int:
    """MB of the job; 0 where each core has its own."""
    return 0 if ask.resources.get("mem_mb_per_cpu") else number_or_zero(ask.resources.get("mem_mb"))


def number_or_zero(value: object) -> int:
    return int(value) if is_number(value) else 0
