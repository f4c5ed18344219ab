"""Checks of the GPUs that the jobs ask for: how many, of which model, by which option."""

from collections.abc import Iterator

from gpufeed.preflight.finding import Finding
from gpufeed.preflight.gres import gpus_in
from gpufeed.preflight.naming import near, rules_of
from gpufeed.preflight.node import Node
from gpufeed.preflight.plan import Ask, Plan
from gpufeed.preflight.site import Site


def gpus_asked_once(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    twice = [ask for ask in plan.first if asks_twice(ask)]
    if twice:
        yield Finding(
            f"GPUs asked for twice, by gpu and by gres: {rules_of(twice)}",
            "gpu alone, which the rules set: Slurm adds up or refuses --gpus beside --gres",
            f"take gpu and gpu_model out of {plan.file('gpu_model', 'gpu')}: several nodes ask by gres"
            if all(ask.on_several for ask in twice)
            else f"take gres out of {plan.file('gres')}; the model goes into sweep_gpu_model",
        )


def asks_twice(ask: Ask) -> bool:
    """Whether it asks for GPUs by gres and by gpu or gpu_model, too; with gpu: 0 the model alone does."""
    by_name = ask.resources.get("gpu") or ask.resources.get("gpu_model") or ask.option("--gpus", "-G")
    return bool(by_name and ask.gres) or "both 'gpu' and 'gres'" in ask.error


def one_model(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    asking = [ask for ask in plan.first if ask.gpus and ask.wants_gpu]
    models = {ask.model for ask in asking}
    for model in sorted(models - set(site.gpus) - {""}):
        yield Finding(
            f"GPU {model}",
            f"one of {site.name}'s: {', '.join(site.gpus)}",
            f"write sweep_gpu_model: {near(model, site.gpus)} into "
            + plan.file("gpu_model", "sweep_gpu_model", "default-resources"),
        )
    if len(models) > 1:
        by = {
            model or "any": rules_of(ask for ask in asking if ask.model == model) for model in sorted(models)
        }
        yield Finding(
            "several models of GPU in one sweep: "
            + "; ".join(f"{model}: {rules}" for model, rules in by.items()),
            "one model: numbers of different GPUs do not compare",
            f"take gpu_model and gres out of set-resources in {plan.file('set-resources')}, and name one as "
            f"sweep_gpu_model under {plan.defaults}",
        )
    elif models == {""}:
        yield Finding(
            f"no model of GPU: {rules_of(asking)}",
            "one model for the whole sweep: numbers of different GPUs do not compare",
            f"write sweep_gpu_model under {plan.defaults}: {', '.join(site.gpus)}",
        )


def constraint(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    asking = {
        (str(ask.resources["constraint"]), ask.model) for ask in plan.first if ask.resources.get("constraint")
    }
    for feature, model in sorted(asking):
        if feature not in site.constraints:
            yield Finding(
                f"constraint {feature}",
                f"one that preflight knows of {site.name}: {', '.join(site.constraints)}",
                'see `sinfo -o "%P %f"` on the login node; add it to site.yaml if it is there',
                note=True,
            )
        elif model and site.constraints[feature] != model:
            yield Finding(
                f"constraint {feature} with GPU {model}: no node has both",
                f"sweep_gpu_model: {site.constraints[feature]}",
                "change sweep_gpu_model or sweep_constraint in "
                + plan.file("sweep_constraint", "constraint", "default-resources"),
            )
    yield from forms(plan, site)
    if len({feature for feature, _ in asking}) > 1:
        yield Finding(
            f"several constraints in one sweep: {', '.join(sorted({feature for feature, _ in asking}))}",
            "one: numbers of different GPUs do not compare",
            f"name one as sweep_constraint under {plan.defaults}",
        )


def forms(plan: Plan, site: Site) -> Iterator[Finding]:
    """A model that the site has in several forms, where no constraint picks one."""
    open_to_all = [ask for ask in plan.first if ask.gpus and not ask.resources.get("constraint")]
    for model in sorted({ask.model for ask in open_to_all}):
        features = [feature for feature, of in site.constraints.items() if of == model]
        if len(features) > 1:
            rules = rules_of(ask for ask in open_to_all if ask.model == model)
            yield Finding(
                f"GPU {model} in any of its forms: {rules}",
                f"one of {', '.join(features)} for the whole sweep: their numbers do not compare",
                f"write sweep_constraint: {features[-1]} under {plan.defaults}",
                note=True,
            )


def rules_without_gpu(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    asking = [ask for ask in plan.first if not ask.wants_gpu and gpu_in_line(ask)]
    if asking:
        yield Finding(
            f"rules that need no GPU ask for one: {rules_of(asking)}",
            "no gpu, gpu_model or gres in default-resources, which reach every rule, or set-resources",
            f"take gpu and gres out of {plan.file('gpu', 'gres', 'gpu_model')}; call gpu_model "
            "sweep_gpu_model: rules give it to jobs with a GPU alone",
        )


def gpu_in_line(ask: Ask) -> bool:
    """Whether the line asks for GPUs."""
    gpus = ask.option("--gpus", "-G") or ""
    return bool(gpus and gpus.split(":")[-1] != "0") or any(
        number for _, number in gpus_in(ask.option("--gres"))
    )


def rules_with_gpu(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    asking = [ask for ask in plan.first if ask.wants_gpu and not ask.gpus and not gpu_in_line(ask)]
    if asking:
        yield Finding(
            f"rules that need a GPU ask for none: {rules_of(asking)}",
            "the number of GPUs that the rules set",
            f"take gpu out of {plan.file('gpu')}: without a GPU the job measures the CPU or is skipped",
        )


def one_node(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    here = [ask for ask in plan.first if ask.gpus > 1 and ask.line and not ask.on_several]
    spread = [ask for ask in here if ask.option("--nodes", "-N") != "1"]
    if spread:
        yield Finding(
            f"several GPUs without --nodes=1: {rules_of(spread)}",
            "all GPUs of a job on one node: Slurm may spread --gpus over several, and the job then fails",
            f"no nodes under set-resources, and nodes: 1 under {plan.defaults}",
        )
    tasks = [ask for ask in plan.first if ask.gpus and ask.option("--ntasks-per-gpu")]
    if tasks:
        yield Finding(
            f"tasks for jobs with GPUs: {rules_of(tasks)}",
            "one task, which starts the processes of all GPUs of its node itself",
            f"take tasks and tasks_per_gpu out of {plan.file('tasks_per_gpu', 'tasks')}",
        )
