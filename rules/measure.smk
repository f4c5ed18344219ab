# One cell, one repeat, one fresh process -> one record.


def cache_of(wildcards):
    cell = cell_of(wildcards)
    return f"{DATA}/{cell.dataset}/cache/pillow.npy" if LOADERS[cell.loader].reads == "cache" else []


def modules_of(wildcards):
    """The modules that decide what a cell measures: an edit measures it again."""
    cell = cell_of(wildcards)
    kinds = ("loader", "augment", "model", "trainer")
    return [source_file(kind, getattr(cell, kind)) for kind in kinds]


rule measure_cell:
    input:
        manifest=lambda wildcards: f"{DATA}/{cell_of(wildcards).dataset}/manifest.parquet",
        cache=cache_of,
        modules=modules_of,
    output:
        record=f"{RESULTS}/records/{{experiment}}/{{cell}}/{{repeat}}.json",
        steps=f"{RESULTS}/records/{{experiment}}/{{cell}}/{{repeat}}.steps.parquet",
    log:
        f"{RESULTS}/logs/measure_cell/{{experiment}}/{{cell}}/{{repeat}}.log",
    params:
        cell=lambda wildcards: cell_of(wildcards).asdict(),
        repeat=lambda wildcards: int(wildcards.repeat),
        attempt=lambda wildcards, output: attempt(output.record, node_name()),
    threads: config.get("cores_per_cell") or ALL_CORES
    resources:
        gpu=GPU_JOBS,
    conda:
        "../envs/gpufeed.yaml"
    script:
        "../workflow/scripts/measure_cell.py"
