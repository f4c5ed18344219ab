# Manifest -> its images in FFCV's format, and the sidecar that vouches for them.


rule build_beton:
    input:
        manifest=f"{DATA}/{{dataset}}/manifest.parquet",
        files=lambda wildcards: files_of(wildcards.dataset),
    output:
        beton=f"{DATA}/{{dataset}}/beton/images.beton",
        info=f"{DATA}/{{dataset}}/beton/images.json",
    log:
        f"{RESULTS}/logs/build_beton/{{dataset}}.log",
    priority: ORDER.before_all
    conda:
        "../envs/gpufeed.yaml"
    threads: cores_of_job
    resources:
        cpus_per_task=cores_of_job,
    params:
        code=digest("beton/*.py"),
    script:
        "../workflow/scripts/build_beton.py"
