# Archive -> image files in class folders, and their manifest.


def archives_of(wildcards):
    files = config["sources"][wildcards.dataset].get("files", [])
    return [f"{DATA}/{wildcards.dataset}/archives/{file['name']}" for file in files]


def source_row(wildcards):
    for file in config["sources"][wildcards.dataset].get("files", []):
        if file["name"] == wildcards.file:
            return file
    raise WorkflowError(f"found: no file {wildcards.file} in sources.{wildcards.dataset}")


rule download:
    output:
        f"{DATA}/{{dataset}}/archives/{{file}}",
    log:
        f"{RESULTS}/logs/download/{{dataset}}/{{file}}.log",
    params:
        file=source_row,
        archives=config["archives"],
    localrule: True  # compute nodes often have no network
    conda:
        "../envs/gpufeed.yaml"
    script:
        "../workflow/scripts/download.py"


rule prepare_dataset:
    input:
        archives=archives_of,
    output:
        manifest=f"{DATA}/{{dataset}}/manifest.parquet",
        images=directory(f"{DATA}/{{dataset}}/images"),
    log:
        f"{RESULTS}/logs/prepare_dataset/{{dataset}}.log",
    params:
        dataset=lambda wildcards: wildcards.dataset,
        layout=lambda wildcards: config["sources"][wildcards.dataset]["layout"],
        options=lambda wildcards: config["sources"][wildcards.dataset].get("options", {}),
    conda:
        "../envs/gpufeed.yaml"
    script:
        "../workflow/scripts/prepare_dataset.py"
