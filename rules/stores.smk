# What loaders and models read besides the manifest: caches, strips, shards, FFCV files, and our kernels.


# Manifest -> one uint8 array file of all images.
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
    priority: SCHEDULE.before_all
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


# Manifest -> all images with one length of the short side, contiguous in one file, for crops of any size.
rule build_scaled_cache:
    input:
        manifest=f"{DATA}/{{dataset}}/manifest.parquet",
        files=lambda wildcards: RUN.files_of(wildcards.dataset),
    output:
        cache=f"{DATA}/{{dataset}}/cache/short{{side}}.npy",
        info=f"{DATA}/{{dataset}}/cache/short{{side}}.json",
    log:
        f"{RESULTS}/logs/build_scaled_cache/{{dataset}}/{{side}}.log",
    priority: SCHEDULE.before_all
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
    priority: SCHEDULE.before_all
    conda:
        "../envs/gpufeed.yaml"
    threads: RESOURCES.cores_of_job
    resources:
        cpus_per_task=RESOURCES.cores_of_job,
    params:
        code=CODES.of("build_strips"),
    script:
        "../workflow/scripts/build_strips.py"


# Manifest -> its files in tar shards. Only the index is an output: it is written last, so that finished shards of a
# stopped build remain for the next one.
rule build_shards:
    input:
        manifest=f"{DATA}/{{dataset}}/manifest.parquet",
        files=lambda wildcards: RUN.files_of(wildcards.dataset),
    output:
        index=f"{DATA}/{{dataset}}/shards/shards.json",
    log:
        f"{RESULTS}/logs/build_shards/{{dataset}}.log",
    priority: SCHEDULE.before_all
    conda:
        "../envs/gpufeed.yaml"
    threads: RESOURCES.cores_of_job
    resources:
        cpus_per_task=RESOURCES.cores_of_job,
    params:
        code=CODES.of("build_shards"),
    script:
        "../workflow/scripts/build_shards.py"


# Manifest -> its images in FFCV's format, and their sidecar.
rule build_beton:
    input:
        manifest=f"{DATA}/{{dataset}}/manifest.parquet",
        files=lambda wildcards: RUN.files_of(wildcards.dataset),
    output:
        beton=f"{DATA}/{{dataset}}/beton/images.beton",
        info=f"{DATA}/{{dataset}}/beton/images.json",
    log:
        f"{RESULTS}/logs/build_beton/{{dataset}}.log",
    priority: SCHEDULE.before_all
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
    priority: SCHEDULE.before_all
    conda:
        "../envs/gpufeed.yaml"
    threads: RESOURCES.cores_of_extension
    resources:
        cpus_per_task=RESOURCES.cores_of_extension,
    params:
        cpu_alone=config["device"] == "cpu",
        attempt=lambda wildcards: RUN.attempt_at(RUN.about_extension, "cpu"),  # the same with or without a GPU
        code=CODES.of("build_extension", files=("native/csrc/**/*.*",)),
    script:
        "../workflow/scripts/build_extension.py"
