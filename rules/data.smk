# Archive -> image files in class folders, and their manifest.

from gpufeed.experiment import source_options
from gpufeed.registry import DERIVED


def archives_of(wildcards):
    """What a layout reads: the source's files, or the manifest of the dataset that it is made of."""
    if config["sources"][wildcards.dataset]["layout"] in DERIVED:
        return f"{DATA}/{source_options(config, wildcards.dataset)['of']}/manifest.parquet"
    files = config["sources"][wildcards.dataset].get("files", [])
    return [f"{DATA}/{wildcards.dataset}/archives/{file['name']}" for file in files]


def content_of(wildcards):
    """What makes a source file what it is. Where it comes from is not part of it: see download.py."""
    for file in config["sources"][wildcards.dataset].get("files", []):
        if file["name"] == wildcards.file:
            return {key: file.get(key) for key in ("name", "sha256", "size")}
    raise WorkflowError(f"found: no file {wildcards.file} in sources.{wildcards.dataset}")


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
    output:
        manifest=f"{DATA}/{{dataset}}/manifest.parquet",
        images=directory(f"{DATA}/{{dataset}}/images"),
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
        resize=lambda wildcards: config["sources"][wildcards.dataset].get("resize"),
        code=lambda wildcards: digest(*code_of_layout(wildcards)),
    script:
        "../workflow/scripts/prepare_dataset.py"
