"""Checks of what the jobs ask Slurm for. Each names a rule once, however many jobs of it are wrong."""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from gpufeed.preflight.finding import Finding
from gpufeed.preflight.gres import gpus_in
from gpufeed.preflight.node import Node
from gpufeed.preflight.plan import Ask, Plan
from gpufeed.preflight.site import Site


def rules_of(asks: Iterable[Ask]) -> str:
    """The rules, each once: `gate, measure_cell`."""
    return ", ".join(sorted({ask.rule for ask in asks}))


def near(name: str, choices: Iterable[str]) -> str:
    """The choice that looks most like a name, or the first."""
    return next(iter([*get_close_matches(name, list(choices), n=1), *choices]))


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
    for file, key, near in plan.unheard:
        yield Finding(
            f"{key} in {file}, which Snakemake passes over without a word",
            "options of Snakemake, rules of this workflow, and resources that it or Slurm's executor reads",
            f"write {near} instead" if near else "correct it, or take it out",
        )


def set_resources(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    for file, rules in plan.erased:
        yield Finding(
            f"resources in {file} lost by a later set-resources: {', '.join(sorted(rules))}",
            "one set-resources: Snakemake takes that of the last profile, or of the command line, as a whole",
            f"put the lines of the later one into {file} and take it out, or repeat all of {file} there",
        )


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


def submittable(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    by_error: dict[str, list[Ask]] = {}
    for ask in plan.first:
        if ask.error and not asks_twice(ask):
            by_error.setdefault(ask.error, []).append(ask)
    for error, asks in by_error.items():
        yield Finding(
            f"Slurm's executor refuses {rules_of(asks)}: {error}",
            "resources that it turns into an sbatch line",
            f"correct them in {plan.file('set-resources', 'default-resources')}",
        )


def unknown(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    for name in sorted({name for ask in plan.first for name in ask.unknown}):
        yield Finding(
            f"no {name}, where Snakemake would go by the size of input files: "
            + rules_of(ask for ask in plan.first if name in ask.unknown),
            "a number, by which there are a line and a partition before the files are there",
            f"write {name} under {plan.defaults}",
        )


def account(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    given = {ask.option("-A", "--account") for ask in plan.first if ask.line}
    if None in given or any(name.startswith("$") for name in given if name):
        yield Finding(
            "no account",
            f"{site.account}; your accounts here: {', '.join(sorted(node.accounts))}"
            if node.accounts
            else site.account,
            f"export SBATCH_ACCOUNT=ACCOUNT, or write it as slurm_account under {plan.defaults}",
        )
    elif node.accounts:
        for name in sorted(given - {account.lower() for account in node.accounts} - node.accounts):
            yield Finding(
                f"account {name}, which Slurm does not know for you",
                f"one of: {', '.join(sorted(node.accounts))}",
                "export SBATCH_ACCOUNT=ACCOUNT with one of them",
            )


def partition(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    partitions = f"the file that slurm-partition-config in {plan.file('slurm-partition-config')} names"
    without = [
        ask
        for ask in plan.first
        if ask.line and not ask.option("-p", "--partition") and not unknown_model(ask, site)
    ]
    if without:
        example = max(without, key=lambda ask: ask.gpus)
        asked = f"{example.gpus} x {example.model or 'GPU'}, {example.hours:g} h"
        yield Finding(
            f"no partition for {rules_of(without)} (such as {asked})",
            "a partition that takes them",
            f"write slurm_partition under {plan.defaults}, or correct {partitions}",
        )
    if node.partitions:
        names = {ask.option("-p", "--partition") for ask in plan.first} - {None, ""}
        for name in sorted(names - node.partitions):
            yield Finding(
                f"partition {name}, which this cluster does not have",
                f"one of: {', '.join(sorted(node.partitions))}",
                f"correct {partitions}, or name another as slurm_partition",
            )


def quality_of_service(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    given = {ask.option("--qos", "-q") or "" for ask in plan.first if ask.line}
    for name in sorted(given - set(site.qos)):
        yield Finding(
            f"qos {name}" if name else "no qos",
            f"one of {site.name}'s: {', '.join(site.qos)}",
            f"write qos: {near(name, site.qos)} into {plan.file('qos', 'default-resources')}",
        )
    yield from qos_of_accounts(plan, site, node)
    for name in sorted(given & set(site.qos)):
        after = site.qos[name].preempted_after_hours
        stays = [
            ask for ask in plan.first if ask.option("--qos", "-q") == name and "--requeue" not in ask.line
        ]
        if after is not None and stays:
            yield Finding(
                f"no --requeue under qos {name}, which may preempt after {after:g} h: {rules_of(stays)}",
                "jobs that Slurm starts again",
                f"slurm-requeue: true in {plan.file('slurm-requeue')}",
            )


def qos_of_accounts(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    """Those of the site that Slurm refuses to an account."""
    lines = [ask for ask in plan.first if ask.line]
    asked = {(ask.option("-A", "--account") or "", ask.option("--qos", "-q") or "") for ask in lines}
    for account, name in sorted(asked):
        may = node.qos.get(account.lower())
        if may and name in site.qos and name not in may:
            yield Finding(
                f"qos {name}, which account {account} may not use",
                f"one of: {', '.join(sorted(may))}",
                f"write qos: {near(name, sorted(may))} into {plan.file('qos', 'default-resources')}, or take "
                "another account",
            )


def time(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    endless = [ask for ask in plan.first if ask.line and not ask.hours]
    if endless:
        yield Finding(
            f"no time limit: {rules_of(endless)}",
            "runtime in minutes: Slurm's default may be an hour, or the partition's longest",
            f"write runtime under {plan.defaults}",
        )
    for asks in (plan.first, plan.last):
        over = [(ask, reason) for ask in asks if (reason := too_long(ask, site))]
        for reason in sorted({reason for _, reason in over}):
            rules = rules_of(ask for ask, its in over if its == reason)
            when = f" at the last of {plan.retries} retries" if asks is plan.last else ""
            yield Finding(
                f"{rules}{when}: {reason}",
                "jobs within the limits of the qos: GPUs x hours count, not hours alone",
                "lower runtime, or the GPUs (devices and nodes in the config), or take another qos",
            )
        if over:
            return  # a retry is longer still


def too_long(ask: Ask, site: Site) -> str:
    """By how much a job is too long for its qos; "" where it is not."""
    limits = site.qos.get(ask.option("--qos", "-q") or "")
    if limits and limits.hours is not None and ask.hours > limits.hours:
        return f"{ask.hours:g} h, where {limits.hours:g} h are allowed"
    if limits and limits.gpu_hours is not None and ask.gpus * ask.hours > limits.gpu_hours:
        longest = limits.gpu_hours / ask.gpus
        return (
            f"{ask.gpus} GPUs for {ask.hours:g} h are {ask.gpus * ask.hours:g} GPU-hours, where "
            f"{limits.gpu_hours:g} are allowed, {longest:g} h"
        )
    return ""


def unknown_model(ask: Ask, site: Site) -> bool:
    """Whether it asks for a GPU that the site has not: no partition takes it, and `one_model` tells why."""
    return bool(ask.gpus and ask.model and ask.model not in site.gpus)


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


CHECKS = (
    executor, profiles, set_resources, gpus_asked_once, submittable, unknown, account, partition,
    quality_of_service, time, one_model, constraint, rules_without_gpu, rules_with_gpu, one_node,
)  # fmt: skip
