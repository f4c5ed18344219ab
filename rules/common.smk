# The plan, and the constraints on wildcards that follow from it.

import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

sys.path.insert(0, str(Path(workflow.basedir)))  # gpufeed stands beside the Snakefile

from gpufeed.attempts import attempt
from gpufeed.code import digest
from gpufeed.config import planned
from gpufeed.config_schema import check_files
from gpufeed.errors import GpufeedError
from gpufeed.folders import check_run_folder, settle_folders, unwritable
from gpufeed.node import announce, node_name
from gpufeed.order import Order
from gpufeed.orphan import handed_down
from gpufeed.registry import DECODERS, LOADERS
from gpufeed.repeats import AGAIN, number_of
from gpufeed.sweep.plan import STRIP_SETS

try:
    if workflow.is_main_process:
        check_files(workflow.configfiles)  # of two keys Snakemake keeps the last
        check_run_folder(Path.cwd(), Path(workflow.basedir))
    PLAN = planned(config)
    settle_folders(config)
except GpufeedError as error:
    raise WorkflowError(f"nothing can be planned\n{error}")

announce(planning=workflow.is_main_process)
# Slurm sends SIGTERM to all processes of a job: the shell waits for the program, which may have a state to keep
shell.prefix(f"set -euo pipefail; trap : TERM; {handed_down()}; ")

RESULTS = config["results"]
DATA = config["data"]
ORDER = Order(PLAN.cells, config["seed"], PLAN.most_repeats)
GPU_JOBS = int(config["device"] in ("auto", "cuda"))
ANALYSIS_CODE = digest(
    "analysis/*.py",
    "analysis/templates/*",
    "record.py",
    "repeats.py",
    "side_by_side.py",
    "gate/verdict.py",
    "ceilings/verdict.py",
)


wildcard_constraints:
    dataset="|".join(config["sources"]),
    decoder="|".join({**DECODERS, **STRIP_SETS}),
    experiment="|".join(PLAN.cells),
    loader="|".join(LOADERS),
    variant="[a-z0-9-]+",
    cell="[A-Za-z0-9_.-]+",
    repeat=f"[0-9]+({AGAIN})?",
    repeats="[0-9]+",


def cell_of(wildcards):
    """The planned cell behind a path; a path of a cell that the config no longer has is an error."""
    try:
        return PLAN.cells[wildcards.experiment][wildcards.cell]
    except KeyError:
        raise WorkflowError(
            f"found: no cell {wildcards.cell} in experiment {wildcards.experiment}\n"
            "expected: a cell of the present config\n"
            "what to do: name the experiment as target, and snakemake finds its cells"
        )


def identity_of(wildcards):
    """The planned cell, as its digest is made of it: what jobs are given of it never changes under its name."""
    return cell_of(wildcards).identity()


def attempt_at(path, device=config["device"]):
    """Which attempt a document comes from. Takes no `output`: Snakemake would not compare it then."""
    return attempt(path, node_name(), device)
