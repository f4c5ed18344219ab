# The plan, and the constraints on wildcards that follow from it.

import sys
from dataclasses import asdict
from functools import cache
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger

sys.path.insert(0, str(Path(workflow.basedir)))  # gpufeed stands beside the Snakefile

from gpufeed.attempts import attempt
from gpufeed.baseline import baseline_records
from gpufeed.builds import planned_builds
from gpufeed.ceilings import plan as ceilings_plan
from gpufeed.code import digest
from gpufeed.config import planned
from gpufeed.errors import GpufeedError
from gpufeed.expected import table
from gpufeed.experiment import source_options
from gpufeed.impact import planned_impact
from gpufeed.inference import plan as inference_plan
from gpufeed.kernels.plan import ACTIVATION, AUGMENT
from gpufeed.kernels.plan import lines as kernel_lines
from gpufeed.kernels.plan import settings as kernel_settings
from gpufeed.gate.variants import settings_of, variant
from gpufeed.models.vit_options import BY_EXTENSION
from gpufeed.node import announce, node_name
from gpufeed.order import Order
from gpufeed.registry import DECODERS, DERIVED, LOADERS, MODELS, source_file
from gpufeed.sweep.plan import STRIP_SETS
from gpufeed.sweep.plan import settings as sweep_settings
from gpufeed.trained.plan import files_to_predict, kept_cells

try:
    PLAN = planned(config)
except GpufeedError as error:
    raise WorkflowError(f"the config cannot be run\n{error}")

announce(planning=workflow.is_main_process)

RESULTS = config["results"]
DATA = config["data"]
KEPT = {name: kept_cells(config, PLAN, name) for name in PLAN.cells}  # cells whose models are kept
IN_USE = {name: inference_plan.cells(config, PLAN, name) for name in PLAN.cells}  # and are measured in use
LIMITED = {name: ceilings_plan.cells(config, PLAN, name) for name in PLAN.cells}  # cells with their ceilings
BUILDS = {name: builds for name in PLAN.cells if (builds := planned_builds(config, name))}
# A cell's path ends in a digest of the cell: a file that was written anew holds the same cell, and what was made
# from it stays (`ancient` where it is read).
CELL_FILE = f"{RESULTS}/cells/{{experiment}}/{{cell}}.yaml"
EXTENSION = f"{RESULTS}/extension/gpufeed_ops.so"
ABOUT_EXTENSION = f"{RESULTS}/extension/gpufeed_ops.json"
ORDER = Order(PLAN.cells, config["seed"], PLAN.most_repeats)
GPU_JOBS = int(config["device"] in ("auto", "cuda"))
CONFIGFILES = [f"--configfile {path}" for path in workflow.overwrite_configfiles]
ANALYSIS_CODE = digest(
    "analysis/*.py", "analysis/templates/*", "record.py", "gate/verdict.py", "ceilings/verdict.py"
)


wildcard_constraints:
    dataset="|".join(config["sources"]),
    decoder="|".join({**DECODERS, **STRIP_SETS}),
    experiment="|".join(PLAN.cells),
    loader="|".join(LOADERS),
    variant="[a-z0-9-]+",
    cell="[A-Za-z0-9_.-]+",
    repeat="[0-9]+",
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


def decision_on(experiment, repeats):
    """The file that says whether so many repeats are too few; experiments with `repeats: auto` have it."""
    return f"{RESULTS}/repeats/{experiment}/{repeats}.json"


def auto_of(experiment):
    """The settings behind `repeats: auto`; without it the path of a decision is an error."""
    try:
        return PLAN.auto[experiment]
    except KeyError:
        raise WorkflowError(
            f"found: a fixed number of repeats in experiment {experiment}\nexpected: `repeats: auto` in it"
        )


def repeats_so_far(experiment):
    """Repeats of a cell by the decisions that are there."""
    if experiment not in PLAN.auto:
        return PLAN.repeats[experiment]
    return auto_of(experiment).count(lambda repeats: decision_on(experiment, repeats))


def repeats_of(experiment):
    """Repeats of a cell; with `repeats: auto` Snakemake measures and asks again until no more are wanted."""
    if experiment not in PLAN.auto:
        return PLAN.repeats[experiment]
    decide = checkpoints.count_repeats
    return auto_of(experiment).count(
        lambda repeats: decide.get(experiment=experiment, repeats=repeats).output[0]
    )


def first_records_of(experiment, repeats, kind="json"):
    """Paths of the records (or, with kind 'steps.parquet', the step tables) of so many repeats of all cells."""
    return [
        f"{RESULTS}/records/{experiment}/{cell}/{repeat}.{kind}"
        for cell in PLAN.cells[experiment]
        for repeat in range(repeats)
    ]


def records_of(experiment, kind="json"):
    """As first_records_of, of all repeats of an experiment."""
    return first_records_of(experiment, repeats_of(experiment), kind)


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
                "gates": gates_of(name),
                "builds": ["-".join(run) for run in BUILDS[name].runs] if name in BUILDS else [],
                "kernels": kernels_in_report(name),
                "impact": impact_of(name),
                "models": KEPT[name],
                "inference": IN_USE[name],
                "ceilings": LIMITED[name],
                "sweep": (sweep_settings(config, name) or {}).get("decoders", []),
            }
            for name, cells in PLAN.cells.items()
        },
        "left_out": [
            {"experiment": left.experiment, "sentence": left.sentence, "combinations": left.combinations}
            for left in PLAN.left_out
        ],
        "command": " ".join(["snakemake {target} --cores 8 --resources gpu=1", *CONFIGFILES]),
    }


def archives_of(wildcards):
    """What a layout reads: the source's files, or the manifest of the dataset that it is made of."""
    if config["sources"][wildcards.dataset]["layout"] in DERIVED:
        return f"{DATA}/{source_options(config, wildcards.dataset)['of']}/manifest.parquet"
    files = config["sources"][wildcards.dataset].get("files", [])
    return [f"{DATA}/{wildcards.dataset}/archives/{file['name']}" for file in files]


def content_of(wildcards):
    """What makes a source file what it is. Where it comes from is not part of it: see download.py."""
    for file in config["sources"][wildcards.dataset].get("files", []):
        if file["name"] == wildcards.file:
            return {key: file.get(key) for key in ("name", "sha256", "size")}
    raise WorkflowError(f"found: no file {wildcards.file} in sources.{wildcards.dataset}")


def read_by(wildcards):
    """(dataset, loader) behind a path, of a cell or of a gate."""
    place = wildcards if hasattr(wildcards, "loader") else cell_of(wildcards)
    return place.dataset, place.loader


def cache_of(wildcards):
    dataset, loader = read_by(wildcards)
    cache = f"{DATA}/{dataset}/cache/{config['cache_decoder']}.npy"
    return cache if LOADERS[loader].reads == "cache" else []


def strips_of(wildcards):
    dataset, loader = read_by(wildcards)
    return f"{DATA}/{dataset}/strips/strips.bin" if LOADERS[loader].reads == "strips" else []


def extension_of(wildcards):
    """The library of a cell whose model's activation is a kernel of ours."""
    activation = cell_of(wildcards).hyper["model"].get("activation")
    return EXTENSION if activation in BY_EXTENSION else []


def strips_for_cache(wildcards):
    return f"{DATA}/{wildcards.dataset}/strips/strips.bin" if wildcards.decoder == "strips" else []


def attempt_at(path, device=config["device"]):
    """Which attempt a document comes from. Takes no `output`: Snakemake would not compare it then."""
    return attempt(path, node_name(), device)


def gate_name(cell):
    """What tells the verdict on a cell's loader with the cell's settings from others."""
    return f"{cell.dataset}/{cell.loader}/{variant(settings_of(cell), cell.device)}"


def gate_path(name):
    """The verdict of that name."""
    return f"{RESULTS}/gate/{name}.json"


def attempt_at_gate(wildcards):
    """Which attempt a verdict comes from."""
    return attempt_at(f"{RESULTS}/gate/{wildcards.dataset}/{wildcards.loader}/{wildcards.variant}.json")


@cache
def all_judged():
    """Verdicts that cells wait for: name -> settings. Made once: jobs ask for them again and again."""
    cells = (cell for own in PLAN.cells.values() for cell in own.values())
    return {gate_name(cell): settings_of(cell) for cell in cells}


def settings_judged(wildcards):
    """The settings behind a verdict's name; a name that no cell has is an error."""
    if found := all_judged().get(f"{wildcards.dataset}/{wildcards.loader}/{wildcards.variant}"):
        return found
    raise WorkflowError(
        f"found: no cell with {wildcards.loader} on {wildcards.dataset} and settings {wildcards.variant}\n"
        "expected: settings of a planned cell\n"
        "what to do: name an experiment as target, and snakemake finds its verdicts"
    )


def gate_of(wildcards):
    """The verdict that a cell waits for; ceilings have none."""
    cell = cell_of(wildcards)
    return [] if LOADERS[cell.loader].ceiling else gate_path(gate_name(cell))


def gates_of(experiment):
    """The names of the verdicts that the cells of an experiment wait for."""
    cells = PLAN.cells[experiment].values()
    return sorted({gate_name(cell) for cell in cells if not LOADERS[cell.loader].ceiling})


def attempt_of(wildcards):
    """Which attempt the record comes from."""
    return attempt_at(f"{RESULTS}/records/{wildcards.experiment}/{wildcards.cell}/{wildcards.repeat}.json")


def builds_path(experiment, decoder, cores):
    return f"{RESULTS}/builds/{experiment}/{decoder}-{cores}.json"


def attempt_of_build(wildcards):
    """Which attempt the times come from; those of a CPU decoder do not depend on the device."""
    return attempt_at(builds_path(**wildcards), "auto" if takes_gpu(wildcards.decoder) else "cpu")


def parts_of(experiments):
    """Everything that the report of these experiments waits for."""
    for experiment in experiments:
        yield from records_of(experiment)
        yield from map(gate_path, gates_of(experiment))
        if experiment in BUILDS:
            yield from (builds_path(experiment, *run) for run in BUILDS[experiment].runs)
        for table in ("cells", "batches"):
            yield f"{RESULTS}/tables/{experiment}/{table}.csv"
        for figure in ("throughput", "breakdown", "workers"):
            yield f"{RESULTS}/figures/{experiment}/{figure}.svg"
        if sweep_settings(config, experiment):
            yield f"{RESULTS}/tables/{experiment}/decoders.csv"
            yield f"{RESULTS}/figures/{experiment}/crossover.svg"
            yield f"{RESULTS}/figures/{experiment}/decoding.svg"
        if kernel_settings(config, experiment):
            yield f"{RESULTS}/kernels/{experiment}.json"
        for cell in KEPT[experiment]:
            kept = f"{RESULTS}/models/{experiment}/{cell}"
            yield from (f"{kept}/evaluation.json", f"{kept}/confusion.svg")
            if files_to_predict(config, experiment):
                yield f"{kept}/predictions.csv"
        if IN_USE[experiment]:
            yield from inferences_of(experiment)
            yield f"{RESULTS}/tables/{experiment}/inference.csv"
            yield f"{RESULTS}/figures/{experiment}/inference.svg"
        if LIMITED[experiment]:
            yield from ceilings_of(experiment)
            yield f"{RESULTS}/tables/{experiment}/ceilings.csv"
            yield f"{RESULTS}/figures/{experiment}/ceilings.svg"


def models_path(wildcards):
    """The folder of a kept model."""
    return f"{RESULTS}/models/{wildcards.experiment}/{wildcards.cell}"


def files_asked_about(wildcards):
    """What a model is asked about; in an experiment that names no files, its predictions are an error."""
    files = files_to_predict(config, wildcards.experiment)
    if not files:
        raise WorkflowError(
            f"found: no files to predict in experiment {wildcards.experiment}\n"
            "expected: `models: {blocks: [...], predict: [FILES AND FOLDERS]}` in it\n"
            "what to do: add it, or run python -m gpufeed.predict on the model"
        )
    return files


def inferences_of(experiment):
    """The measurements of the models of an experiment in use, a file each."""
    return [f"{RESULTS}/inference/{experiment}/{cell}.json" for cell in IN_USE[experiment]]


def inference_of(wildcards):
    """What the models of an experiment are measured with; without any its path is an error."""
    settings = inference_plan.settings(config, wildcards.experiment)
    if settings is None:
        raise WorkflowError(
            f"found: no inference in experiment {wildcards.experiment}\nexpected: `inference:` in it"
        )
    return settings


def ceilings_of(experiment):
    """The ceilings of the cells of an experiment, a file each."""
    return [f"{RESULTS}/ceilings/{experiment}/{cell}.json" for cell in LIMITED[experiment]]


def settings_of_ceilings(wildcards):
    """How the ceilings of an experiment are measured; without any their path is an error."""
    settings = ceilings_plan.settings(config, wildcards.experiment)
    if settings is None:
        raise WorkflowError(
            f"found: no ceilings in experiment {wildcards.experiment}\nexpected: `ceilings:` in it"
        )
    return settings


def kernels_in_report(experiment):
    """What the kernel benchmark of an experiment is held to; None without one."""
    return {"lines": kernel_lines(config, experiment)} if kernel_settings(config, experiment) else None


def kernels_of(experiment):
    """What the kernel benchmark of an experiment measures; without one its path is an error."""
    settings = kernel_settings(config, experiment)
    if settings is None:
        raise WorkflowError(f"found: no kernels in experiment {experiment}\nexpected: `kernels:` in it")
    return settings


def works_of_kernels(wildcards):
    """Whose kernels the benchmark of an experiment measures."""
    return kernels_of(wildcards.experiment)["family"]


def extension_of_kernels(wildcards):
    """The library whose kernels are measured; the augments need none."""
    return EXTENSION if works_of_kernels(wildcards) == ACTIVATION else []


def sweep_of(wildcards):
    """The sweep of an experiment; a path of an experiment without one is an error."""
    settings = sweep_settings(config, wildcards.experiment)
    if settings is None:
        raise WorkflowError(f"found: no sweep in experiment {wildcards.experiment}\nexpected: `sweep:` in it")
    return settings


def settings_of_sweep(wildcards):
    """What one decoder is measured with: another decoder in the config measures none of the others again."""
    return {key: value for key, value in sweep_of(wildcards).items() if key != "decoders"}


def sweeps_of(wildcards):
    """The measured decoders of an experiment, a file each."""
    return [
        f"{RESULTS}/sweeps/{wildcards.experiment}/{decoder}.json"
        for decoder in sweep_of(wildcards)["decoders"]
    ]


def manifests_of_sweep(wildcards):
    return {name: f"{DATA}/{name}/manifest.parquet" for name in sweep_of(wildcards)["datasets"]}


def strips_of_sweep(wildcards):
    """In the order of the datasets; nothing for a decoder that reads files."""
    datasets = sweep_of(wildcards)["datasets"] if wildcards.decoder in STRIP_SETS else []
    return [f"{DATA}/{name}/strips/strips.bin" for name in datasets]


def scope_of(wildcards):
    """report.html is of everything in `run`, report-NAME.html of one experiment."""
    return [wildcards.scope[1:]] if wildcards.scope else config["run"]


def baseline_of(wildcards):
    """The records of an experiment in the folder that it is held against."""
    if not config["baseline"]:
        raise WorkflowError(
            "found: no folder `baseline` in the config\n"
            "expected: the folder of the results that these are held against\n"
            "what to do: --config baseline=results/reference/h200, or python -m gpufeed.compare A B"
        )
    try:
        return [str(path) for path in baseline_records(config["baseline"], wildcards.experiment)]
    except GpufeedError as error:
        raise WorkflowError(f"the results cannot be compared\n{error}")


def measurements_of(experiment):
    """What an experiment measures, by the documents that its jobs leave; with the repeats that are known of."""
    yield from first_records_of(experiment, repeats_so_far(experiment))
    yield from map(gate_path, gates_of(experiment))
    if experiment in BUILDS:
        yield from (builds_path(experiment, *run) for run in BUILDS[experiment].runs)
    if kernel_settings(config, experiment):
        yield f"{RESULTS}/kernels/{experiment}.json"
    for decoder in (sweep_settings(config, experiment) or {}).get("decoders", []):
        yield f"{RESULTS}/sweeps/{experiment}/{decoder}.json"
    yield from (f"{RESULTS}/models/{experiment}/{cell}/model.json" for cell in KEPT[experiment])
    yield from inferences_of(experiment)
    yield from ceilings_of(experiment)


def datasets_of(experiment):
    """The datasets that an experiment reads."""
    yield from (cell.dataset for cell in PLAN.cells[experiment].values())
    yield from (sweep_settings(config, experiment) or {}).get("datasets", [])


if workflow.is_main_process:
    datasets = {dataset for name in config["run"] for dataset in datasets_of(name)}
    manifests = [f"{DATA}/{dataset}/manifest.parquet" for dataset in sorted(datasets)]
    parts = {name: measurements_of(name) for name in config["run"]}
    logger.info(table(parts, RESULTS, manifests, config["least_s"]))
