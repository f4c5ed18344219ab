# Manifest -> strips of its JPEG files, and a list of those that cannot be joined.


rule build_strips:
    input:
        manifest=f"{DATA}/{{dataset}}/manifest.parquet",
        files=lambda wildcards: files_of(wildcards.dataset),
    output:
        strips=f"{DATA}/{{dataset}}/strips/strips.bin",
        index=f"{DATA}/{{dataset}}/strips/strips.parquet",
        info=f"{DATA}/{{dataset}}/strips/strips.json",
    log:
        f"{RESULTS}/logs/build_strips/{{dataset}}.log",
    priority: ORDER.before_all
    conda:
        "../envs/gpufeed.yaml"
    threads: cores_of_job
    resources:
        cpus_per_task=cores_of_job,
    params:
        code=digest("strips/*.py"),
    script:
        "../workflow/scripts/build_strips.py"
