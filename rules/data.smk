# Archive -> image files, in class folders or packed into one archive, and their manifest.


rule download:
    output:
        f"{DATA}/{{dataset}}/archives/{{file}}",
    log:
        f"{RESULTS}/logs/download/{{dataset}}/{{file}}.log",
    priority: ORDER.before_all
    localrule: True  # compute nodes often have no network
    conda:
        "../envs/gpufeed.yaml"
    params:
        file=content_of,
    script:
        "../workflow/scripts/download.py"


rule prepare_dataset:
    input:
        archives=archives_of,
        files=files_made_of,
    output:
        **files_written(),
        manifest=f"{DATA}/{{dataset}}/manifest.parquet",
    log:
        f"{RESULTS}/logs/prepare_dataset/{{dataset}}.log",
    priority: ORDER.before_all
    conda:
        "../envs/gpufeed.yaml"
    threads: cores_of_job  # every image is decoded once, to find the broken ones
    resources:
        cpus_per_task=cores_of_job,
    params:
        dataset=lambda wildcards: wildcards.dataset,
        layout=lambda wildcards: config["sources"][wildcards.dataset]["layout"],
        options=lambda wildcards: source_options(config, wildcards.dataset),
        folder=folder_of,
        resize=lambda wildcards: config["sources"][wildcards.dataset].get("resize"),
        code=lambda wildcards: digest(*code_of_layout(wildcards)),
    script:
        "../workflow/scripts/prepare_dataset.py"
