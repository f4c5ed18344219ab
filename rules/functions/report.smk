# What the report says of the plan, and what it waits for.

from dataclasses import asdict

from gpufeed.again import options
from gpufeed.impact import planned_impact
from gpufeed.side_by_side import pair

SIDE_BY_SIDE = {name: pair(config, PLAN, name) for name in PLAN.cells}  # block -> its cell, of two

OPTIONS = options(
    workflow.overwrite_configfiles, workflow.config_settings.config, ".", workflow.main_snakefile
)


def impact_of(experiment):
    """The impact table of an experiment as plain data; None if it has none."""
    impact = planned_impact(config, experiment, PLAN.cells[experiment].values())
    return impact and asdict(impact)


def plan_info():
    """What the report says of the plan: titles, questions, cells, and what was left out."""
    return {
        "experiments": {
            name: {
                "title": config["experiments"][name]["title"],
                "question": config["experiments"][name]["question"],
                "repeats": repeats_so_far(name),
                "cells": list(cells),
                "cores": max([8, *(cell.workers for cell in cells.values())]),
                "gates": gates_of(name),
                "builds": ["-".join(run) for run in BUILDS[name].runs] if name in BUILDS else [],
                "kernels": kernels_in_report(name),
                "impact": impact_of(name),
                "models": KEPT[name],
                "inference": IN_USE[name],
                "ceilings": LIMITED[name],
                "side_by_side": SIDE_BY_SIDE[name],
                "sweep": (sweep_settings(config, name) or {}).get("decoders", []),
            }
            for name, cells in PLAN.cells.items()
        },
        "left_out": [
            {"experiment": left.experiment, "sentence": left.sentence, "combinations": left.combinations}
            for left in PLAN.left_out
        ],
        "command": " ".join(["snakemake {target} --cores {cores} --resources gpu=1", *OPTIONS]),
    }


def parts_of(experiments, records=True):
    """Everything that the report of these experiments waits for.

    records: those that are known of, too, which are not asked for by any checkpoint. The tables wait for all that
    there will be: a job that waits for these as well would be run again for those that were added meanwhile.
    """
    for experiment in experiments:
        if records:
            yield from first_records_of(experiment, repeats_so_far(experiment))
        yield from map(gate_path, gates_of(experiment))
        if experiment in BUILDS:
            yield from (builds_path(experiment, *run) for run in BUILDS[experiment].runs)
        for table in ("cells", "batches"):
            yield f"{RESULTS}/tables/{experiment}/{table}.csv"
        for figure in ("throughput", "breakdown", "workers", "timeline"):
            yield f"{RESULTS}/figures/{experiment}/{figure}.svg"
        if SIDE_BY_SIDE[experiment]:
            yield f"{RESULTS}/tables/{experiment}/side_by_side.csv"
            yield f"{RESULTS}/figures/{experiment}/side_by_side.svg"
            yield f"{RESULTS}/figures/{experiment}/side_by_side_totals.svg"
        if sweep_settings(config, experiment):
            yield f"{RESULTS}/tables/{experiment}/decoders.csv"
            yield f"{RESULTS}/figures/{experiment}/crossover.svg"
            yield f"{RESULTS}/figures/{experiment}/decoding.svg"
        if kernel_settings(config, experiment):
            yield f"{RESULTS}/kernels/{experiment}.json"
        for cell in KEPT[experiment]:
            kept = f"{RESULTS}/models/{experiment}/{cell}"
            yield from (f"{kept}/evaluation.json", f"{kept}/confusion.svg")
            if is_asked(experiment):
                yield f"{kept}/predictions.csv"
        if IN_USE[experiment]:
            yield from inferences_of(experiment)
            yield f"{RESULTS}/tables/{experiment}/inference.csv"
            yield f"{RESULTS}/figures/{experiment}/inference.svg"
        if LIMITED[experiment]:
            yield from ceilings_of(experiment)
            yield f"{RESULTS}/tables/{experiment}/ceilings.csv"
            yield f"{RESULTS}/figures/{experiment}/ceilings.svg"


def scope_of(wildcards):
    """report.html is of everything in `run`, report-NAME.html of one experiment."""
    return [wildcards.scope[1:]] if wildcards.scope else config["run"]
