# What a run measures, how many minutes that takes and what it writes: printed before it begins.

from functools import cache

from snakemake.logging import logger

from gpufeed.data.amount import amount_of
from gpufeed.expected import (
    CEILING_EPOCHS,
    DATASET_S,
    beyond,
    check_room,
    disks,
    existing,
    skipped,
    table,
    written,
)
from gpufeed.experiment import without_cuda
from gpufeed.node import shows_gpu
from gpufeed.registry import DERIVED

amount = cache(lambda dataset: amount_of(config, dataset))


def measurements_of(experiment):
    """What an experiment measures, by the documents that its jobs leave; with the repeats known so far."""
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


@cache
def stores_of(dataset):
    """What the experiments of this run have made of a dataset, without what it is made of: path -> bytes."""
    cells = [cell for name in config["run"] for cell in PLAN.cells[name].values() if cell.dataset == dataset]
    sizes, folder = amount(dataset), f"{DATA}/{dataset}"
    found = {f"{folder}/cache/pillow.npy": 3 * sizes.kept} if any(map(gate_of_cell, cells)) else {}
    for reads in {LOADERS[cell.loader].reads for cell in cells} & BUILT.keys():
        found[f"{folder}/{BUILT[reads]}"] = 3 * sizes.kept if reads == "cache" else sizes.files
    return found


def gate_of_cell(cell):
    """Whether a cell waits for a verdict."""
    return not LOADERS[cell.loader].ceiling


def files_to_write(dataset):
    """The files of a dataset in `data`, with its stores: path -> bytes. Own images may be linked."""
    source, folder = config["sources"][dataset], f"{DATA}/{dataset}"
    found = {f"{folder}/archives/{file['name']}": file.get("size") or 0 for file in source.get("files", [])}
    own = source.get("folder")
    linked = own and not PACKED and existing(own).stat().st_dev == existing(DATA).stat().st_dev
    return found | {f"{folder}/manifest.parquet": 0 if linked else amount(dataset).files} | stores_of(dataset)


def seconds_beyond(path):
    """What a measurement takes longer than its kind, with more or larger images than usual."""
    kind, name, *rest = Path(path).relative_to(RESULTS).parts
    if kind == "gate":
        return beyond(amount(name).read, CORES_HERE)
    cell = PLAN.cells[name][rest[0].removesuffix(".json")] if kind in ("records", "ceilings") else None
    if cell is None or LOADERS[cell.loader].ceiling or LOADERS[cell.loader].reads == "cache":
        return 0.0
    sizes, epochs = amount(cell.dataset), cell.epochs
    if kind == "ceilings":
        epochs = CEILING_EPOCHS
    elif cell.steps is not None:
        epochs = cell.steps * cell.batch_size * cell.ranks / sizes.images if sizes.images else 1
    return beyond(epochs * sizes.read, CORES_HERE)


@cache
def datasets_read():
    """The datasets of this run, and those that they are made of."""
    found = {dataset for name in config["run"] for dataset in datasets_of(name)}
    made = {name for name in found if config["sources"][name]["layout"] in DERIVED}
    return sorted(found | {source_options(config, name)["of"] for name in made})


@cache
def disks_of(datasets):
    """The disks that are written to for some datasets (a frozenset) and the experiments of this run on them."""
    data = {path: size for dataset in datasets for path, size in files_to_write(dataset).items()}
    names = [name for name in config["run"] if not datasets.isdisjoint(datasets_of(name))]
    documents = [path for name in names for path in measurements_of(name)]
    return disks({DATA: data, RESULTS: written(documents, RESULTS)})


ASKED_FOR = set()  # datasets that the DAG has a job for


def room_checked(dataset):
    """Raises WorkflowError where a disk is too short for the datasets of the DAG so far; jobs do not ask again."""
    if workflow.is_main_process:
        ASKED_FOR.add(dataset)
        try:
            check_room(disks_of(frozenset(ASKED_FOR)))
        except GpufeedError as error:
            raise WorkflowError(f"the disk is too short\n{error}")


def seconds_to_prepare(dataset):
    """Of a dataset with all of its stores."""
    return DATASET_S + (1 + len(stores_of(dataset))) * beyond(amount(dataset).read, CORES_HERE)


if workflow.is_main_process:
    RUNS_HERE = workflow.resource_settings.nodes is None  # else jobs are submitted, as by profile slurm
    CORES_HERE = (RUNS_HERE and workflow.resource_settings.cores) or config["cores_per_job"]
    manifests = {f"{DATA}/{name}/manifest.parquet": seconds_to_prepare(name) for name in datasets_read()}
    parts = {name: measurements_of(name) for name in config["run"]}
    logger.info(
        table(
            parts, RESULTS, manifests, config["least_s"], seconds_beyond, disks_of(frozenset(datasets_read()))
        )
    )
    if RUNS_HERE and workflow.resource_settings.cores and not shows_gpu():
        cells = [cell for name in config["run"] for cell in PLAN.cells[name].values()]
        if reasons := without_cuda(cells):
            logger.info(skipped(reasons, len(cells)))
