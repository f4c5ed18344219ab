"""Checks of the GPUs that the jobs ask for: how many, of which model, on how many nodes."""

import re
from collections.abc import Iterable, Iterator

from gpufeed.cluster.preflight.asked_extra import OPTIONS, in_extra, out_of_extra
from gpufeed.cluster.preflight.asked_options import gpus_out_of_extra
from gpufeed.cluster.preflight.asked_plan import Ask, Plan
from gpufeed.cluster.preflight.finding import Finding
from gpufeed.cluster.preflight.finding_names import near, rules_of
from gpufeed.cluster.preflight.gres import gpus_by_option
from gpufeed.cluster.preflight.login_node import Node
from gpufeed.cluster.preflight.sbatch_words import words_of
from gpufeed.cluster.preflight.site import Site


def one_model(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    asking = [ask for ask in plan.first if ask.gpus and ask.wants_gpu]
    models = {model for ask in asking for model in ask.models}
    for model in sorted(models - set(site.gpus) - {""}):
        yield Finding(
            f"GPU {model}",
            f"one of {site.name}'s: {', '.join(site.gpus) or 'none, by gpus in its site.yaml'}",
            f"write sweep_gpu_model: {near(model, site.gpus)} into "
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
                + too(plan, (ask for ask in constrained if ask.constraint == feature)),
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
            f"call it sweep_constraint in {file}: rules give it to jobs with a GPU alone" + too(plan, asking),
        )
    empty = [ask for ask in plan.first if ask.constraint == ""]
    if empty:
        yield Finding(
            f"an empty constraint: {rules_of(empty)}",
            "the name of a feature, or no constraint",
            f"take constraint out of {file}" + too(plan, empty),
        )


def too(plan: Plan, asking: Iterable[Ask]) -> str:
    """What to do beside, where a constraint is one of slurm_extra."""
    options = [option for ask in asking for option, _ in in_extra(ask, *OPTIONS["sweep_constraint"])]
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
                f"write sweep_constraint: {near(name, sorted(known))} into "
                + plan.file("sweep_constraint", "constraint", "default-resources")
                + too(plan, asking),
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
