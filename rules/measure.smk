# One cell, one repeat, one fresh process -> one record.


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
    conda:
        "../envs/gpufeed.yaml"
    threads: config.get("cores_per_cell") or ALL_CORES
    resources:
        gpu=GPU_JOBS,
    params:
        cell=lambda wildcards: cell_of(wildcards).asdict(),
        repeat=lambda wildcards: int(wildcards.repeat),
        attempt=lambda wildcards, output: attempt(output.record, node_name()),
    script:
        "../workflow/scripts/measure_cell.py"
