# What a run measures, and how many minutes that takes: printed before it begins.

from snakemake.logging import logger

from gpufeed.expected import table


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
