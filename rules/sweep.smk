# One decoder, one process, every image size, core count, batch size and page cache -> one sweep.

from gpufeed.sweep.plan import STRIP_SETS
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


rule measure_decoder:
    input:
        unpack(manifests_of_sweep),
        files=lambda wildcards: [path for name in sweep_of(wildcards)["datasets"] for path in files_of(name)],
        strips=strips_of_sweep,
    output:
        f"{RESULTS}/sweeps/{{experiment}}/{{decoder}}.json",
    log:
        f"{RESULTS}/logs/measure_decoder/{{experiment}}/{{decoder}}.log",
    conda:
        "../envs/gpufeed.yaml"
    threads: cores_of_job
    resources:
        **of_gpu_jobs(),
        cpus_per_task=cores_of_job,
        gpu=GPU_JOBS,
    params:
        settings=settings_of_sweep,
        device=config["device"],
        attempt=lambda wildcards: attempt_at(
            f"{RESULTS}/sweeps/{wildcards.experiment}/{wildcards.decoder}.json"
        ),
        code=lambda wildcards: digest(
            *("sweep/*.py", "decode/*.py", "data/manifest.py", "heap.py"),
            *("loaders/dali_reader.py",) * wildcards.decoder.startswith("dali"),
            *("strips/**/*.py",) * (wildcards.decoder in STRIP_SETS),
        ),
    script:
        "../workflow/scripts/measure_decoder.py"


rule tabulate_sweep:
    input:
        sweeps_of,
    output:
        decoders=report(
            f"{RESULTS}/tables/{{experiment}}/decoders.csv",
            caption="../workflow/report/decoders.rst",
            category="{experiment}",
            labels={"what": "decoders", "kind": "table"},
        ),
    log:
        f"{RESULTS}/logs/tabulate_sweep/{{experiment}}.log",
    conda:
        "../envs/gpufeed.yaml"
    params:
        code=ANALYSIS_CODE,
    script:
        "../workflow/scripts/tabulate_sweep.py"


rule plot_sweep:
    input:
        sweeps_of,
    output:
        crossover=report(
            f"{RESULTS}/figures/{{experiment}}/crossover.svg",
            caption="../workflow/report/crossover.rst",
            category="{experiment}",
            labels={"what": "when GPU decoding pays", "kind": "figure"},
        ),
        decoding=report(
            f"{RESULTS}/figures/{{experiment}}/decoding.svg",
            caption="../workflow/report/decoding.rst",
            category="{experiment}",
            labels={"what": "batch size and page cache", "kind": "figure"},
        ),
    log:
        f"{RESULTS}/logs/plot_sweep/{{experiment}}.log",
    conda:
        "../envs/gpufeed.yaml"
    params:
        code=ANALYSIS_CODE,
    script:
        "../workflow/scripts/plot_sweep.py"
