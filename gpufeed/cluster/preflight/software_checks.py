"""Checks of the node, the software environment, the container and profiles/default.

A run in the container, `--sdm apptainer`, needs the image and apptainer, and the GPUs and folders inside.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import yaml

from gpufeed.cluster.preflight.asked_plan import Plan, words_of
from gpufeed.cluster.preflight.finding import Finding
from gpufeed.cluster.preflight.login_node import Node
from gpufeed.cluster.preflight.site import Site
from gpufeed.core.config import ROOT
from gpufeed.core.config_schema import check_files
from gpufeed.core.errors import GpufeedError

LOCAL = tuple(Path(folder) for folder in ("/tmp", "/var/tmp", "/dev/shm", "/run"))  # separate on each node
TAKES_SQUEUE_S = 120  # MinJobAge below which the executor uses sacct
ASKS_EVERY_S = 180  # the executor's longest polling interval
ERASING = re.compile(  # keys of Snakemake and of its executors for clusters
    "resources|res|default-res(ources)?|default-threads|set-resources|set-resource-scopes|set-threads|max-threads"
    "|executor|jobs|retries|restart-times|(slurm|cluster).*"
)
DEFAULT_PROFILE = "profiles/default/config.yaml"


def login_node(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    if node.min_job_age is not None and TAKES_SQUEUE_S <= node.min_job_age <= ASKS_EVERY_S:
        yield Finding(
            f"squeue here forgets a job {node.min_job_age} s after its end",
            f"more than {ASKS_EVERY_S} s: Snakemake may ask that late, and then waits for the job forever",
            "slurm-status-command: sacct in the profile",
        )
    if node.inside_job:
        yield Finding(
            f"preflight inside of Slurm job {node.inside_job}",
            "a login node: snakemake must outlive the jobs that it submits",
            "leave the allocation, and run snakemake in tmux or screen on the login node",
        )


def is_local(folder: Path) -> bool:
    """Return whether a folder, links followed, is on a disk that each node has separately."""
    return any(place.is_relative_to(local) for local in LOCAL for place in (folder, folder.resolve()))


def environment(plan: Plan, site: Site, node: Node, deployment: str = "none") -> Iterator[Finding]:
    """Check where the software is, and that it starts.

    deployment: what runs the jobs: this Python (`none`), `conda` or `apptainer`.
    """
    places = {"the checkout": node.checkout}
    if plan.logs:
        places["slurm-logdir"] = node.checkout / Path(plan.logs).expanduser()
    if deployment == "none":
        places["Python"] = node.python.parent
    for name, folder in places.items():
        if is_local(folder):
            yield Finding(
                f"{name} in {folder}, which compute nodes do not see",
                "a folder that every node mounts",
                f"create it below your home folder or {site.scratch.folder}",
            )
    if deployment == "apptainer":
        yield from container(plan, site, node)
    elif deployment == "conda" and not node.commands.get("conda"):
        yield Finding("no command conda", "conda, which creates the environment", "module load anaconda3")
    elif deployment == "none" and node.no_torch:
        yield Finding(
            f"torch does not start: {node.no_torch}",
            "an environment with gpufeed in it",
            "make setup, then run preflight with .venv/bin/python",
        )


def container(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    if not (ROOT / "containers/gpufeed.sif").exists():
        yield Finding(
            "no image containers/gpufeed.sif",
            "the image of containers/gpufeed.def",
            "apptainer build containers/gpufeed.sif containers/gpufeed.def",
        )
    if not (node.commands.get("apptainer") or node.commands.get("singularity")):
        yield Finding("no command apptainer", "apptainer on every node", "module load apptainer")
    given, hidden = words_of(plan.apptainer_args), hidden_folders(plan, site)
    blind = not node.nv and "--nv" not in given and sorted({ask.rule for ask in plan.jobs if ask.gpus})
    binds = ["--bind", ",".join(hidden)] if hidden else []
    words = ["", *given, *(["--nv"] if blind else []), *binds]  # leading space, for Snakemake's parser
    option = f"--apptainer-args {shlex.quote(' '.join(words))}"
    if blind:
        yield Finding(
            f"no --nv for the container: no GPU in it for {', '.join(blind)}",
            "--nv, which gives the container the GPUs and the driver of its host",
            f"{option}, or export APPTAINER_NV=1",
        )
    if hidden:
        yield Finding(
            f"data or results in {', '.join(hidden)}, outside of the checkout",
            "folders that the container sees: Snakemake mounts only the checkout",
            f"{option}, unless the site binds them",
            note=True,
        )


def hidden_folders(plan: Plan, site: Site) -> list[str]:
    """Return the folders that must be bound for data and results, and are not."""
    values = re.findall(r"(?:--bind[= ]|-B ?)(\S+)", plan.apptainer_args)
    binds = [bind.split(":") for value in values for bind in value.split(",")]
    shown = (ROOT, *(Path(source) for source, *at in binds if not at or at[0] == source))
    hidden = [place for place in plan.folders.values() if not any(place.is_relative_to(at) for at in shown)]
    scratch = site.scratch.folder
    return sorted({str(scratch if scratch in place.parents else place.parent) for place in hidden})


def served(capability: str, architectures: tuple[str, ...]) -> bool:
    """Return whether code for these architectures runs on a GPU of this compute capability.

    Machine code (sm_) runs on later minor versions of its major version, PTX (compute_) on all later GPUs.
    """
    own = tuple(int(part) for part in capability.split("."))
    for name in architectures:
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", name)
        if not found:
            continue
        theirs = (int(found[2]), int(found[3]))
        if found[4]:  # such as sm_90a: only for this one
            if theirs == own:
                return True
        elif theirs <= own and (found[1] == "compute" or theirs[0] == own[0]):
            return True
    return False


def stack(plan: Plan, site: Site, node: Node, deployment: str = "none") -> Iterator[Finding]:
    """Check that this Python's torch has code for the GPUs; conda and the image have CUDA 12, which does."""
    if deployment != "none" or node.cuda is None:
        return
    for model in sorted({model for ask in plan.jobs for model in ask.models} & set(site.gpus)):
        if not served(site.gpus[model], node.architectures):
            others = [
                name for name, capability in site.gpus.items() if served(capability, node.architectures)
            ]
            yield Finding(
                f"GPU {model} (compute capability {site.gpus[model]}) with CUDA {node.cuda or 'none'}: "
                f"torch has code only for {', '.join(node.architectures) or 'no GPU'}",
                "a GPU that the stack supports",
                "make setup CUDA=12"
                + (f", or another sweep_gpu_model: {', '.join(others)}" if others else ""),
            )


def keys_twice(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    """Yield duplicate keys in a profile, of which Snakemake silently keeps the last."""
    try:
        check_files(plan.profiles)
    except GpufeedError as error:
        yield Finding(error.found, error.expected, error.remedy)


def default_profile(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    path = next(folder for folder in (Path(DEFAULT_PROFILE), ROOT / DEFAULT_PROFILE) if folder.is_file())
    found = [key for key in yaml.safe_load(path.read_text()) or {} if ERASING.fullmatch(key)]
    if found:
        yield Finding(
            f"{', '.join(found)} in {DEFAULT_PROFILE}",
            "only cores and display: other keys override or erase those of the cluster's profile",
            "move them into the cluster's profile, and run preflight again",
        )
