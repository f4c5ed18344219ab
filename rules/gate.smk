# A loader on a dataset, held against the files decoded by Pillow -> the verdict that its cells wait for.


rule gate:
    input:
        manifest=f"{DATA}/{{dataset}}/manifest.parquet",
        reference=f"{DATA}/{{dataset}}/cache/pillow.npy",
        cache=cache_of,
        strips=strips_of,
    output:
        verdict=f"{RESULTS}/gate/{{dataset}}/{{loader}}.json",
    log:
        f"{RESULTS}/logs/gate/{{dataset}}/{{loader}}.log",
    conda:
        "../envs/gpufeed.yaml"
    threads: (ALL_CORES + 1) // 2  # nothing is timed, so that two loaders may be judged at once
    resources:
        gpu=GPU_JOBS,
    params:
        variants=variants_of,
        attempt=lambda wildcards: attempt(gate_path(wildcards.dataset, wildcards.loader), node_name()),
        code=lambda wildcards: digest(
            *("gate/*.py", "loaders/*.py", "decode/*.py", "strips/**/*.py", "cache/*.py", "data/manifest.py")
        ),
    script:
        "../workflow/scripts/gate.py"
