"""Checks of what the jobs ask Slurm for. Each names a rule once, however many jobs of it are wrong."""

from collections.abc import Iterator

from gpufeed.cluster.preflight.asked_extra import instead_of_extra, repeated_by_extra, shell, signal
from gpufeed.cluster.preflight.asked_plan import Ask, Plan
from gpufeed.cluster.preflight.asked_resources import (
    asks_twice,
    constraint,
    cores_of_rules,
    gpus_asked_once,
    gpus_in_extra,
    gpus_of_rules,
    memory,
    one_model,
    one_node,
    rules_with_gpu,
    rules_without_gpu,
)
from gpufeed.cluster.preflight.finding import Finding, nearest_choice, rules_of
from gpufeed.cluster.preflight.login_node import Node
from gpufeed.cluster.preflight.site import Site


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
            f"{key} in {file}, which Snakemake passes over without a word",
            "options of Snakemake, rules of this workflow, and resources that it or Slurm's executor reads",
            f"write {nearest} instead" if nearest else "correct it, or take it out",
        )


def set_resources(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    for file, rules in plan.erased:
        yield Finding(
            f"resources in {file} lost by a later set-resources: {', '.join(sorted(rules))}",
            "one set-resources: Snakemake takes that of the last profile, or of the command line, as a whole",
            f"put the lines of the later one into {file} and take it out, or repeat all of {file} there",
        )


def submittable(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    by_error: dict[str, list[Ask]] = {}
    for ask in plan.first:
        if ask.error and not asks_twice(ask):
            by_error.setdefault(ask.error, []).append(ask)
    either = f"under {plan.defaults}, or under set-resources of {plan.file('set-resources')}"
    for error, asks in by_error.items():
        yield Finding(
            f"Slurm's executor refuses {rules_of(asks)}: {error}",
            "resources that it turns into an sbatch line",
            instead_of_extra(plan, asks)
            if "not allowed in the 'slurm_extra'" in error
            else f"correct them {either}",
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
    given = {ask.option("-A", "--account") or "" for ask in plan.first if ask.line}
    unset = [name for name in given if name.startswith("$")]
    if unset and not site.account:
        yield Finding(
            f"account {unset[0]}, which the shell does not have",
            f"no account: {site.name} has none, by its site.yaml",
            f"take slurm_account out of {plan.file('slurm_account', 'default-resources')}",
        )
    elif unset or (site.account and "" in given):
        yield Finding(
            "no account",
            f"{site.account}; your accounts here: {', '.join(sorted(node.accounts))}"
            if node.accounts
            else site.account,
            f"export SBATCH_ACCOUNT=ACCOUNT, or write it as slurm_account under {plan.defaults}",
        )
    elif node.accounts:
        known = node.accounts | {account.lower() for account in node.accounts} | {""}
        for name in sorted(given - known):
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
        yield Finding(
            f"no partition for {rules_of(without)} (such as {size_of(example)})",
            "a partition that takes them",
            f"write slurm_partition under {plan.defaults}, or correct {partitions}",
        )
    names = {name for ask in plan.first for name in partitions_of(ask)}
    if node.partitions:
        for name in sorted(names - node.partitions):
            yield Finding(
                f"partition {name}, which this cluster does not have",
                f"one of: {', '.join(sorted(node.partitions))}",
                f"correct {partitions}, or name another as slurm_partition",
            )
    if plan.partitions:
        for name in sorted(names - set(plan.partitions)):
            known = name in node.partitions
            yield Finding(
                f"partition {name}, not in {partitions}: nobody asks whether it takes "
                + rules_of(ask for ask in plan.first if name in partitions_of(ask)),
                f"one of: {', '.join(plan.partitions)}",
                f"add it to that file, or {out_of_partition(plan)}",
                note=known,
            )
        yield from too_much_for_partition(plan, names & set(plan.partitions), site)


def too_much_for_partition(plan: Plan, names: set[str], site: Site) -> Iterator[Finding]:
    """Jobs that the partition they name does not take, by its limits in the file."""
    for name in sorted(names):
        over = [
            ask
            for ask in plan.first
            if name in partitions_of(ask) and name not in ask.taking and not unknown_model(ask, site)
        ]
        if over:
            example = max(over, key=lambda ask: ask.gpus)
            taking = ", ".join(example.taking) or "none"
            yield Finding(
                f"partition {name} for {rules_of(over)} (such as {size_of(example)}), which it does not take",
                f"a job within its limits; of the partitions in its file this one fits: {taking}",
                f"{out_of_partition(plan)}, or correct {name} in that file",
            )


def out_of_partition(plan: Plan) -> str:
    """What to do about a slurm_partition."""
    return f"take slurm_partition out of {plan.file('slurm_partition')}: the executor picks one of the file"


def partitions_of(ask: Ask) -> list[str]:
    """The partitions that its line names."""
    return list(filter(None, (ask.option("-p", "--partition") or "").split(",")))


def size_of(ask: Ask) -> str:
    """What counts for a partition: 2 x H200, 1 h."""
    return f"{ask.gpus} x {ask.model or 'GPU'}, {ask.hours:g} h"


def quality_of_service(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    given = {ask.option("--qos", "-q") or "" for ask in plan.first if ask.line}
    file = plan.file("qos", "default-resources")
    for name in sorted(given - set(site.qos or {""})):
        yield Finding(
            f"qos {name}" if name else "no qos",
            f"one of {site.name}'s: {', '.join(site.qos)}"
            if site.qos
            else f"no qos: {site.name} has none, by its site.yaml",
            f"write qos: {nearest_choice(name, site.qos)} into {file}"
            if site.qos
            else f"take qos out of {file}",
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
    file = plan.file("qos", "default-resources")
    for account, name in sorted(asked):
        may = node.qos.get(account.lower())
        if may and name in site.qos and name not in may:
            yield Finding(
                f"qos {name}, which account {account} may not use",
                f"one of: {', '.join(sorted(may))}",
                f"write qos: {nearest_choice(name, sorted(may))} into {file}, or take another account",
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
    return bool(ask.gpus and ask.models - {""} - set(site.gpus))


CHECKS = (
    executor, profiles, set_resources, gpus_asked_once, gpus_in_extra, repeated_by_extra, signal, submittable,
    unknown, account, partition, quality_of_service, time, one_model, constraint, rules_without_gpu,
    rules_with_gpu, gpus_of_rules, cores_of_rules, memory, one_node, shell,
)  # fmt: skip
