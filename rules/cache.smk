# Manifest -> one uint8 tensor file of all its images.


rule build_cache:
    input:
        manifest=f"{DATA}/{{dataset}}/manifest.parquet",
    output:
        cache=f"{DATA}/{{dataset}}/cache/{{decoder}}.npy",
        info=f"{DATA}/{{dataset}}/cache/{{decoder}}.json",
    log:
        f"{RESULTS}/logs/build_cache/{{dataset}}/{{decoder}}.log",
    conda:
        "../envs/gpufeed.yaml"
    threads: ALL_CORES
    params:
        decoder=lambda wildcards: wildcards.decoder,
    script:
        "../workflow/scripts/build_cache.py"
