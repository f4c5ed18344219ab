# Manifest -> one uint8 tensor file of all its images.


rule build_cache:
    input:
        manifest=f"{DATA}/{{dataset}}/manifest.parquet",
        files=lambda wildcards: files_of(wildcards.dataset),
        strips=strips_for_cache,
        extension=extension_of_decoder,
    output:
        cache=f"{DATA}/{{dataset}}/cache/{{decoder}}.npy",
        info=f"{DATA}/{{dataset}}/cache/{{decoder}}.json",
    log:
        f"{RESULTS}/logs/build_cache/{{dataset}}/{{decoder}}.log",
    priority: ORDER.before_all
    conda:
        "../envs/gpufeed.yaml"
    threads: cores_of_job
    resources:
        **of_gpu_jobs(lambda wildcards: takes_gpu(wildcards.decoder)),
        cpus_per_task=cores_of_job,
        gpu=lambda wildcards: GPU_JOBS if takes_gpu(wildcards.decoder) else 0,
    params:
        decoder=lambda wildcards: wildcards.decoder,
        device=lambda wildcards: config["device"] if wildcards.decoder == "strips" else None,
        code=lambda wildcards: digest(
            *("cache/*.py", "data/resize.py"),
            *code_of_decoder(wildcards.decoder),
        ),
    script:
        "../workflow/scripts/build_cache.py"
