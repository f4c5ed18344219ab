# What experiments measure besides cells: ceilings, decoders, builds of caches, kernels.


# One cell with one prepared step, with its loader and without -> its ceilings -> a table and a figure of all.
rule measure_ceilings:
    input:
        unpack(DATASETS.needs_as_tuned),
    output:
        ceilings=f"{RESULTS}/ceilings/{{experiment}}/{{cell}}.json",
    log:
        f"{RESULTS}/logs/measure_ceilings/{{experiment}}/{{cell}}.log",
    conda:
        "../envs/gpufeed.yaml"
    threads: RESOURCES.cores_of_cell
    resources:
        **RESOURCES.of_gpu_jobs(),
        cpus_per_task=RESOURCES.cores_of_cell,
        gpu=RESOURCES.gpus_of_cell,
    params:
        cell=RUN.identity_of,
        settings=BENCHMARKS.settings_of_ceilings,
        attempt=lambda wildcards: RUN.attempt_at(
            f"{RESULTS}/ceilings/{wildcards.experiment}/{wildcards.cell}.json"
        ),
        code=CODES.of_training("measure_ceilings"),
    script:
        "../workflow/scripts/measure_ceilings.py"


rule plot_ceilings:
    input:
        lambda wildcards: BENCHMARKS.ceilings_of(wildcards.experiment),
    output:
        table=report(
            f"{RESULTS}/tables/{{experiment}}/ceilings.csv",
            caption="../workflow/report/ceilings_table.rst",
            category="{experiment}",
            labels={"what": "how far from the limit", "kind": "table"},
        ),
        figure=report(
            f"{RESULTS}/figures/{{experiment}}/ceilings.svg",
            caption="../workflow/report/ceilings.rst",
            category="{experiment}",
            labels={"what": "how far from the limit", "kind": "figure"},
        ),
    log:
        f"{RESULTS}/logs/plot_ceilings/{{experiment}}.log",
    conda:
        "../envs/gpufeed.yaml"
    params:
        code=CODES.of_report("plot_ceilings"),
    script:
        "../workflow/scripts/plot_ceilings.py"


# One decoder in one process, for every image size, core count, batch size and page cache -> one sweep.
rule measure_decoder:
    input:
        unpack(BENCHMARKS.manifests_of_sweep),
        files=lambda wildcards: [
            path for name in BENCHMARKS.sweep_of(wildcards)["datasets"] for path in RUN.files_of(name)
        ],
        strips=BENCHMARKS.strips_of_sweep,
        extension=RUN.extension_of_decoder,
    output:
        f"{RESULTS}/sweeps/{{experiment}}/{{decoder}}.json",
    log:
        f"{RESULTS}/logs/measure_decoder/{{experiment}}/{{decoder}}.log",
    conda:
        "../envs/gpufeed.yaml"
    threads: RESOURCES.cores_of_job
    resources:
        **RESOURCES.of_gpu_jobs(),
        cpus_per_task=RESOURCES.cores_of_job,
        gpu=RUN.gpu_jobs,
    params:
        settings=BENCHMARKS.settings_of_sweep,
        device=config["device"],
        attempt=lambda wildcards: RUN.attempt_at(
            f"{RESULTS}/sweeps/{wildcards.experiment}/{wildcards.decoder}.json"
        ),
        code=lambda wildcards: CODES.of("measure_decoder", decoder=wildcards.decoder),
    script:
        "../workflow/scripts/measure_decoder.py"


rule tabulate_sweep:
    input:
        BENCHMARKS.sweeps_of,
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
        code=CODES.of_report("tabulate_sweep"),
    script:
        "../workflow/scripts/tabulate_sweep.py"


rule plot_sweep:
    input:
        BENCHMARKS.sweeps_of,
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
        code=CODES.of_report("plot_sweep"),
    script:
        "../workflow/scripts/plot_sweep.py"


# Manifest -> how long each decoder takes to build caches of several sizes.
rule measure_build:
    input:
        manifest=lambda wildcards: f"{DATA}/{BENCHMARKS.builds[wildcards.experiment].dataset}/manifest.parquet",
        files=lambda wildcards: RUN.files_of(BENCHMARKS.builds[wildcards.experiment].dataset),
        extension=RUN.extension_of_decoder,
    output:
        f"{RESULTS}/builds/{{experiment}}/{{decoder}}-{{cores}}.json",
    log:
        f"{RESULTS}/logs/measure_build/{{experiment}}/{{decoder}}-{{cores}}.log",
    wildcard_constraints:
        cores="all|one",
    conda:
        "../envs/gpufeed.yaml"
    threads: RESOURCES.cores_of_build
    resources:
        **RESOURCES.of_gpu_jobs(lambda wildcards: takes_gpu(wildcards.decoder)),
        cpus_per_task=RESOURCES.cores_of_build,
        gpu=lambda wildcards: RUN.gpu_jobs if takes_gpu(wildcards.decoder) else 0,
    params:
        counts=lambda wildcards: BENCHMARKS.builds[wildcards.experiment].counts,
        attempt=BENCHMARKS.attempt_of_build,
        code=lambda wildcards: CODES.of("measure_build", decoder=wildcards.decoder),
    script:
        "../workflow/scripts/measure_build.py"


# Kernels alone, of the augments or of an MLP's activation -> times, bytes and shares of the copy bandwidth.
rule measure_kernel:
    input:
        extension=BENCHMARKS.extension_of_kernels,
    output:
        f"{RESULTS}/kernels/{{experiment}}.json",
    log:
        f"{RESULTS}/logs/measure_kernel/{{experiment}}.log",
    conda:
        "../envs/gpufeed.yaml"
    threads: RESOURCES.cores_of_job
    resources:
        **RESOURCES.of_gpu_jobs(),
        cpus_per_task=RESOURCES.cores_of_job,
        gpu=RUN.gpu_jobs,
    params:
        settings=lambda wildcards: BENCHMARKS.kernels_of(wildcards.experiment),
        device=config["device"],
        attempt=lambda wildcards: RUN.attempt_at(f"{RESULTS}/kernels/{wildcards.experiment}.json"),
        code=CODES.of("measure_kernel"),
    script:
        "../workflow/scripts/measure_kernel.py"
