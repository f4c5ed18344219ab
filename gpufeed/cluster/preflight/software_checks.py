"""Checks of Slurm's commands, the software environment, the container, modules and profiles/default.

A run in the container, `--sdm apptainer`, needs the image, the command, and GPUs and folders in it.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import yaml

from gpufeed.cluster.preflight.apptainer_nv import has_gpus, in_force, unread
from gpufeed.cluster.preflight.asked_plan import Plan
from gpufeed.cluster.preflight.finding import Finding, rules_of
from gpufeed.cluster.preflight.login_node import Node
from gpufeed.cluster.preflight.sbatch_options import option_values, words_of
from gpufeed.cluster.preflight.site import ROOT, Site
from gpufeed.core.config_schema import check_files
from gpufeed.core.errors import GpufeedError

LOCAL = tuple(Path(folder) for folder in ("/tmp", "/var/tmp", "/dev/shm", "/run"))  # each node has its own
TAKES_SQUEUE_S = 120  # below it the executor takes sacct by itself
ASKS_EVERY_S = 180  # at the latest
ERASING = re.compile(  # keys of Snakemake and of its executors for clusters
    "resources|res|default-res(ources)?|default-threads|set-resources|set-resource-scopes|set-threads|max-threads"
    "|executor|jobs|retries|restart-times|(slurm|cluster).*"
)
DEFAULT_PROFILE = "profiles/default/config.yaml"
UNCHECKED = {"sacctmgr": ("accounts", "qos"), "sinfo": ("partitions",)}


def slurm_commands(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    if node.missing_commands:
        yield Finding(
            f"no {', '.join(node.missing_commands)}: accounts and partitions are unchecked",
            f"a login node of {site.name}",
            f"run preflight, and snakemake, on {site.login}",
            note=True,
        )
    if node.silent:
        unchecked = ", ".join(what for name in node.silent for what in UNCHECKED[name])
        yield Finding(
            f"{unchecked} are unchecked: no answer of {', '.join(node.silent)}",
            f"Slurm's answers, on a login node of {site.name}",
            f"see what {' and '.join(node.silent)} say there ({site.login}), and run preflight again",
            note=True,
        )
    if node.min_job_age is not None and TAKES_SQUEUE_S <= node.min_job_age <= ASKS_EVERY_S:
        yield Finding(
            f"squeue here forgets a job {node.min_job_age} s after its end",
            f"more than {ASKS_EVERY_S} s: Snakemake may ask that late, and then waits for the job for ever",
            f"slurm-status-command: sacct in {plan.file('slurm-status-command')}",
        )
    if node.inside_job:
        yield Finding(
            f"inside of Slurm's job {node.inside_job}",
            "a login node: snakemake must outlive the jobs that it submits",
            "leave the allocation, and run snakemake in tmux or screen on the login node",
        )


def modules(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    for module in node.modules:
        name, _, version = module.partition("/")
        least = next((site.modules[key] for key in site.modules if name.lower() in (key, f"{key}3")), None)
        if least and numbers(version) and numbers(version) < numbers(least):
            yield Finding(
                f"module {module}",
                f"{name} {least} or newer",
                f"module spider {name}, load a newer one, and make a new environment with it",
            )


def numbers(version: str) -> tuple[int, ...]:
    """12.1.1-qgxjzk -> (12, 1, 1); () where it does not start with a number."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def is_local(folder: Path) -> bool:
    """Whether each node has a folder of its own there, links followed."""
    return any(local in (place, *place.parents) for local in LOCAL for place in (folder, folder.resolve()))


def local_folders(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    """The checkout, where jobs start, and the folder of their logs."""
    if is_local(node.checkout):
        yield Finding(
            f"the checkout in {node.checkout}, which compute nodes do not see",
            "a checkout in a folder that every node mounts: each job starts there",
            f"clone it below your home folder or {site.scratch.folder}",
        )
    if plan.logs and is_local(node.checkout / Path(plan.logs).expanduser()):
        yield Finding(
            f"slurm-logdir: {plan.logs}, which the login node does not share with the compute nodes",
            "a folder that every node mounts: the logs stay on the nodes otherwise",
            f"leave it out in {plan.file('slurm-logdir')} or on the command line: logs then go to "
            ".snakemake/slurm_logs in the checkout",
        )


def environment(plan: Plan, site: Site, node: Node, deployment: str = "none") -> Iterator[Finding]:
    """deployment: what runs the jobs: this Python (`none`), `conda` or `apptainer`."""
    yield from local_folders(plan, site, node)
    if deployment == "apptainer":
        yield from container(plan, site, node)
    elif deployment == "conda":
        if not node.commands.get("conda"):
            yield Finding("no command conda", "conda, which makes the environment", "module load anaconda3")
    else:
        if is_local(node.python.parent):
            yield Finding(
                f"Python in {node.python.parent}, which compute nodes do not see",
                "an environment in a folder that every node mounts",
                f"make it below your home folder or {site.scratch.folder}",
            )
        if node.no_torch:
            yield Finding(
                f"torch does not start: {node.no_torch}",
                "an environment with gpufeed in it",
                "make setup, then run preflight with .venv/bin/python",
            )


def container(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    image = ROOT / "containers/gpufeed.sif"
    if not image.exists():
        yield Finding(
            "no image containers/gpufeed.sif",
            "the image of containers/gpufeed.def",
            "apptainer build containers/gpufeed.sif containers/gpufeed.def",
        )
    if not (node.commands.get("apptainer") or node.commands.get("singularity")):
        yield Finding("no command apptainer", "apptainer on every node", "module load apptainer")
    given, hidden = words_of(plan.apptainer_args), hidden_folders(plan, site)
    set_to = in_force(node.nv, node.commands)
    wrong = unread(given, set_to)
    blind = [ask for ask in plan.first if ask.gpus and not wrong and not has_gpus(given, set_to)]
    binds = ["--bind", ",".join(hidden)] if hidden else []
    words = ["", *given, *(["--nv"] if blind else []), *binds]  # a blank before them, for Snakemake's parser
    option = f"--apptainer-args {shlex.quote(' '.join(words))}"
    for name, value in wrong.items():
        yield Finding(
            f"{name}={value} in the shell, at which apptainer ends with an error in every job",
            "1 or 0, or no such variable",
            f"export {name}=1, for containers with GPUs, or unset {name}",
        )
    if blind:
        instead = ", ".join(f"{name}={value}" for name, value in set_to.items())
        yield Finding(
            f"no --nv for the container{f', and {instead}' if instead else ''}: no GPU in it for "
            f"{rules_of(blind)}",
            "--nv, by which the container has the GPUs and the driver of its host",
            option,
        )
    if hidden:
        yield Finding(
            f"data or results in {', '.join(hidden)}, outside of the checkout",
            "folders that the container shows: of the host Snakemake gives it the checkout alone",
            f"{option}, unless the site binds them",
            note=True,
        )


def hidden_folders(plan: Plan, site: Site) -> list[str]:
    """What has to be bound for data and results, and is not."""
    places = [Path(plan.config[key]).expanduser().absolute() for key in ("data", "results")]
    shown = (ROOT, *bound(plan.apptainer_args))
    hidden = [place for place in places if not any(at in (place, *place.parents) for at in shown)]
    scratch = site.scratch.folder
    return sorted({str(scratch if scratch in place.parents else place.parent) for place in hidden})


def bound(arguments: str) -> list[Path]:
    """Folders that --bind shows under their own path: A, A:A or A:A:rw, several by commas."""
    binds = [
        bind.split(":")
        for _, value in option_values(words_of(arguments), "--bind", "-B")
        for bind in value.split(",")
    ]
    return [Path(source) for source, *rest in binds if not rest or rest[0] == source]


def served(capability: str, architectures: tuple[str, ...]) -> bool:
    """Whether code for these architectures runs on a GPU of this compute capability.

    Machine code (sm_) runs on its own major version from its minor one on, PTX (compute_) on all later GPUs.
    """
    own = tuple(int(part) for part in capability.split("."))
    for name in architectures:
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", name)
        if not found:
            continue
        theirs = (int(found[2]), int(found[3]))
        if found[4]:  # such as sm_90a: for this one alone
            if theirs == own:
                return True
        elif theirs <= own and (found[1] == "compute" or theirs[0] == own[0]):
            return True
    return False


def stack(plan: Plan, site: Site, node: Node, deployment: str = "none") -> Iterator[Finding]:
    """Check that this Python's torch has code for the GPUs; conda and the image have CUDA 12, which does."""
    asked = sorted({model for ask in plan.first if ask.gpus for model in ask.models} & set(site.gpus))
    if deployment != "none" or node.cuda is None or not asked:
        return
    if not node.cuda:
        yield Finding(
            "torch without CUDA",
            f"the CUDA stack, for {', '.join(asked)}",
            "make setup CUDA=12 (or 13)",
        )
        return
    for model in asked:
        if not served(site.gpus[model], node.architectures):
            yield Finding(
                f"GPU {model} (compute capability {site.gpus[model]}) with CUDA {node.cuda}: "
                f"torch has code for {', '.join(node.architectures)} alone",
                "a GPU that the stack serves",
                "make setup CUDA=12, or another sweep_gpu_model: "
                + ", ".join(name for name in site.gpus if served(site.gpus[name], node.architectures)),
            )


def keys_twice(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    """Keys that a profile has twice, of which Snakemake keeps the last without a word."""
    try:
        check_files(sorted(set(plan.written.values())))
    except GpufeedError as error:
        yield Finding(error.found, error.expected, error.remedy)


def default_profile(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    path = ROOT / DEFAULT_PROFILE
    if not path.exists():
        return
    found = [key for key in yaml.safe_load(path.read_text()) or {} if ERASING.fullmatch(key)]
    if found:
        yield Finding(
            f"{', '.join(found)} in {DEFAULT_PROFILE}",
            "cores and display alone: keys there override or erase those of the cluster's profile",
            f"move them into {plan.file('')}, and run preflight again: what follows is left out here",
        )
