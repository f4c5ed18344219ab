# What loaders and models read beside the manifest: caches, strips, shards, FFCV files, and our kernels.


# Manifest -> one uint8 tensor file of all its images.
rule build_cache:
    input:
        manifest=f"{DATA}/{{dataset}}/manifest.parquet",
        files=lambda wildcards: RUN.files_of(wildcards.dataset),
        strips=DATASETS.store_for_cache,
        extension=RUN.extension_of_decoder,
    output:
        cache=f"{DATA}/{{dataset}}/cache/{{decoder}}.npy",
        info=f"{DATA}/{{dataset}}/cache/{{decoder}}.json",
    log:
        f"{RESULTS}/logs/build_cache/{{dataset}}/{{decoder}}.log",
    priority: ORDER.before_all
    conda:
        "../envs/gpufeed.yaml"
    threads: RESOURCES.cores_of_job
    resources:
        **RESOURCES.of_gpu_jobs(lambda wildcards: takes_gpu(wildcards.decoder)),
        cpus_per_task=RESOURCES.cores_of_job,
        gpu=lambda wildcards: RUN.gpu_jobs if takes_gpu(wildcards.decoder) else 0,
    params:
        decoder=lambda wildcards: wildcards.decoder,
        device=lambda wildcards: config["device"] if DATASETS.store_for_cache(wildcards) else None,
        code=lambda wildcards: CODES.of("build_cache", decoder=wildcards.decoder),
    script:
        "../workflow/scripts/build_cache.py"


# Manifest -> all its images with short sides of one length, end to end in one file, for crops of any sizes.
rule build_scaled_cache:
    input:
        manifest=f"{DATA}/{{dataset}}/manifest.parquet",
        files=lambda wildcards: RUN.files_of(wildcards.dataset),
    output:
        cache=f"{DATA}/{{dataset}}/cache/short{{side}}.npy",
        info=f"{DATA}/{{dataset}}/cache/short{{side}}.json",
    log:
        f"{RESULTS}/logs/build_scaled_cache/{{dataset}}/{{side}}.log",
    priority: ORDER.before_all
    conda:
        "../envs/gpufeed.yaml"
    threads: RESOURCES.cores_of_job
    resources:
        cpus_per_task=RESOURCES.cores_of_job,
    params:
        code=CODES.of("build_scaled_cache", decoder=["simplejpeg", "pillow"]),
    script:
        "../workflow/scripts/build_scaled_cache.py"


# Manifest -> strips of its JPEG files, and a list of those that cannot be joined.
rule build_strips:
    input:
        manifest=f"{DATA}/{{dataset}}/manifest.parquet",
        files=lambda wildcards: RUN.files_of(wildcards.dataset),
    output:
        strips=f"{DATA}/{{dataset}}/strips/strips.bin",
        index=f"{DATA}/{{dataset}}/strips/strips.parquet",
        info=f"{DATA}/{{dataset}}/strips/strips.json",
    log:
        f"{RESULTS}/logs/build_strips/{{dataset}}.log",
    priority: ORDER.before_all
    conda:
        "../envs/gpufeed.yaml"
    threads: RESOURCES.cores_of_job
    resources:
        cpus_per_task=RESOURCES.cores_of_job,
    params:
        code=CODES.of("build_strips"),
    script:
        "../workflow/scripts/build_strips.py"


# Manifest -> its files in tar shards. The index alone is an output: it is written last, and shards that a build
# which was stopped has finished stay beside it for the next one.
rule build_shards:
    input:
        manifest=f"{DATA}/{{dataset}}/manifest.parquet",
        files=lambda wildcards: RUN.files_of(wildcards.dataset),
    output:
        index=f"{DATA}/{{dataset}}/shards/shards.json",
    log:
        f"{RESULTS}/logs/build_shards/{{dataset}}.log",
    priority: ORDER.before_all
    conda:
        "../envs/gpufeed.yaml"
    threads: RESOURCES.cores_of_job
    resources:
        cpus_per_task=RESOURCES.cores_of_job,
    params:
        code=CODES.of("build_shards"),
    script:
        "../workflow/scripts/build_shards.py"


# Manifest -> its images in FFCV's format, and the sidecar that vouches for them.
rule build_beton:
    input:
        manifest=f"{DATA}/{{dataset}}/manifest.parquet",
        files=lambda wildcards: RUN.files_of(wildcards.dataset),
    output:
        beton=f"{DATA}/{{dataset}}/beton/images.beton",
        info=f"{DATA}/{{dataset}}/beton/images.json",
    log:
        f"{RESULTS}/logs/build_beton/{{dataset}}.log",
    priority: ORDER.before_all
    conda:
        "../envs/gpufeed.yaml"
    threads: RESOURCES.cores_of_job
    resources:
        cpus_per_task=RESOURCES.cores_of_job,
    params:
        code=CODES.of("build_beton"),
    script:
        "../workflow/scripts/build_beton.py"


# C++ and CUDA sources -> the library of our kernels, for models and decoders that use it.
rule build_extension:
    output:
        library=RUN.extension,
        about=RUN.about_extension,
    log:
        f"{RESULTS}/logs/build_extension.log",
    priority: ORDER.before_all
    conda:
        "../envs/gpufeed.yaml"
    threads: RESOURCES.cores_of_extension
    resources:
        cpus_per_task=RESOURCES.cores_of_extension,
    params:
        cpu_alone=config["device"] == "cpu",
        attempt=lambda wildcards: RUN.attempt_at(RUN.about_extension, "cpu"),  # a GPU or none: both may build all
        code=CODES.of("build_extension", files=("native/csrc/**/*.*",)),
    script:
        "../workflow/scripts/build_extension.py"
