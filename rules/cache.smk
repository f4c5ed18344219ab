# Manifest -> one uint8 tensor file of all its images.


rule build_cache:
    input:
        manifest=f"{DATA}/{{dataset}}/manifest.parquet",
    output:
        cache=f"{DATA}/{{dataset}}/cache/{{decoder}}.npy",
        info=f"{DATA}/{{dataset}}/cache/{{decoder}}.json",
    log:
        f"{RESULTS}/logs/build_cache/{{dataset}}/{{decoder}}.log",
    params:
        decoder=lambda wildcards: wildcards.decoder,
    threads: ALL_CORES
    conda:
        "../envs/gpufeed.yaml"
    script:
        "../workflow/scripts/build_cache.py"
