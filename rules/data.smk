# Archive -> image files, in class folders or packed into one archive, and their manifest.


rule download:
    output:
        f"{DATA}/{{dataset}}/archives/{{file}}",
    log:
        f"{RESULTS}/logs/download/{{dataset}}/{{file}}.log",
    priority: SCHEDULE.before_all
    localrule: True  # compute nodes often have no network
    conda:
        "../envs/gpufeed.yaml"
    params:
        file=DATASETS.content_of,
    script:
        "../workflow/scripts/download.py"


rule prepare_dataset:
    input:
        archives=DATASETS.archives_of,
        files=DATASETS.files_made_of,
    output:
        **DATASETS.files_written(directory),
        manifest=f"{DATA}/{{dataset}}/manifest.parquet",
    log:
        f"{RESULTS}/logs/prepare_dataset/{{dataset}}.log",
    priority: SCHEDULE.before_all
    conda:
        "../envs/gpufeed.yaml"
    threads: RESOURCES.cores_of_job  # every image is decoded once, to find the broken ones
    resources:
        cpus_per_task=RESOURCES.cores_of_job,
    params:
        dataset=lambda wildcards: wildcards.dataset,
        layout=lambda wildcards: DATASETS.source_of(wildcards)["layout"],
        options=DATASETS.options_of,
        folder=DATASETS.folder_of,
        quantity=DATASETS.quantity_of,
        resize=lambda wildcards: DATASETS.source_of(wildcards).get("resize"),
        code=lambda wildcards: CODES.of("prepare_dataset", layout=DATASETS.source_of(wildcards)["layout"]),
    script:
        "../workflow/scripts/prepare_dataset.py"
