# Manifest -> its files in tar shards. The index alone is an output: it is written last, and shards that a build
# which was stopped has finished stay beside it for the next one.


rule build_shards:
    input:
        manifest=f"{DATA}/{{dataset}}/manifest.parquet",
        files=lambda wildcards: files_of(wildcards.dataset),
    output:
        index=f"{DATA}/{{dataset}}/shards/shards.json",
    log:
        f"{RESULTS}/logs/build_shards/{{dataset}}.log",
    priority: ORDER.before_all
    conda:
        "../envs/gpufeed.yaml"
    threads: cores_of_job
    resources:
        cpus_per_task=cores_of_job,
    params:
        code=digest("shards/*.py"),
    script:
        "../workflow/scripts/build_shards.py"
