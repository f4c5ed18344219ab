# The plan, and the constraints on wildcards that follow from it.

import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

sys.path.insert(0, str(Path(workflow.basedir)))  # gpufeed stands beside the Snakefile

from gpufeed.attempts import attempt
from gpufeed.config import planned
from gpufeed.errors import GpufeedError
from gpufeed.node import node_name
from gpufeed.registry import DECODERS, LOADERS, source_file

try:
    PLAN = planned(config)
except GpufeedError as error:
    raise WorkflowError(f"the config cannot be run\n{error}")

RESULTS = config["results"]
DATA = config["data"]
GPU_JOBS = int(config["device"] in ("auto", "cuda"))
ALL_CORES = workflow.cores or 8  # None with an executor that counts jobs


wildcard_constraints:
    dataset="|".join(config["sources"]),
    decoder="|".join(DECODERS),
    experiment="|".join(PLAN.cells),
    cell="[A-Za-z0-9_.-]+",
    repeat="[0-9]+",


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


def records_of(experiment, kind="json"):
    """Paths of all records (or, with kind 'steps.parquet', all step tables) of an experiment."""
    return [
        f"{RESULTS}/records/{experiment}/{cell}/{repeat}.{kind}"
        for cell in PLAN.cells[experiment]
        for repeat in range(PLAN.repeats[experiment])
    ]


def plan_info():
    """What the report says of the plan: titles, questions, cells, and what was left out."""
    return {
        "experiments": {
            name: {
                "title": config["experiments"][name]["title"],
                "question": config["experiments"][name]["question"],
                "repeats": PLAN.repeats[name],
                "cells": list(cells),
            }
            for name, cells in PLAN.cells.items()
        },
        "left_out": [
            {"experiment": left.experiment, "sentence": left.sentence, "combinations": left.combinations}
            for left in PLAN.left_out
        ],
        "command": "snakemake --cores 8 --resources gpu=1",
    }
