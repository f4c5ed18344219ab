# One decoder, one process, every image size, core count, batch size and page cache -> one sweep.


rule measure_decoder:
    input:
        unpack(manifests_of_sweep),
        files=lambda wildcards: [path for name in sweep_of(wildcards)["datasets"] for path in files_of(name)],
        strips=strips_of_sweep,
        extension=extension_of_decoder,
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
            *("sweep/*.py", "data/manifest.py", "heap.py"),
            *("loaders/dali_reader.py",) * wildcards.decoder.startswith("dali"),
            *code_of_decoder(wildcards.decoder),
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
