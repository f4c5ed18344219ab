"""Checks of a run in the container, `--sdm apptainer`: image, command, GPUs and folders in it."""

import shlex
from collections.abc import Iterator
from pathlib import Path

from gpufeed.cluster.preflight.apptainer_nv import has_gpus, in_force, unread
from gpufeed.cluster.preflight.asked_plan import Plan
from gpufeed.cluster.preflight.finding import Finding
from gpufeed.cluster.preflight.finding_names import rules_of
from gpufeed.cluster.preflight.login_node import Node
from gpufeed.cluster.preflight.sbatch_words import values, words_of
from gpufeed.cluster.preflight.site import ROOT, Site


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
        for _, value in values(words_of(arguments), "--bind", "-B")
        for bind in value.split(",")
    ]
    return [Path(source) for source, *rest in binds if not rest or rest[0] == source]
