# Manifest -> how long each decoder takes to build caches of several sizes.


rule measure_build:
    input:
        manifest=lambda wildcards: f"{DATA}/{BUILDS[wildcards.experiment].dataset}/manifest.parquet",
        files=lambda wildcards: files_of(BUILDS[wildcards.experiment].dataset),
        extension=extension_of_decoder,
    output:
        f"{RESULTS}/builds/{{experiment}}/{{decoder}}-{{cores}}.json",
    log:
        f"{RESULTS}/logs/measure_build/{{experiment}}/{{decoder}}-{{cores}}.log",
    wildcard_constraints:
        cores="all|one",
    conda:
        "../envs/gpufeed.yaml"
    threads: cores_of_build
    resources:
        **of_gpu_jobs(lambda wildcards: takes_gpu(wildcards.decoder)),
        cpus_per_task=cores_of_build,
        gpu=lambda wildcards: GPU_JOBS if takes_gpu(wildcards.decoder) else 0,
    params:
        counts=lambda wildcards: BUILDS[wildcards.experiment].counts,
        attempt=attempt_of_build,
        code=lambda wildcards: digest(
            *("build_time.py", "processes.py", "heap.py", "cache/*.py", "strips/*.py"),
            *code_of_decoder(wildcards.decoder),
        ),
    script:
        "../workflow/scripts/measure_build.py"
