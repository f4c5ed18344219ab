# Sweeps over decoders.

from gpufeed.sweep.plan import settings as sweep_settings


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
