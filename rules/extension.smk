# C++ and CUDA sources -> the library of our kernels, for models and decoders that use it.


rule build_extension:
    output:
        library=EXTENSION,
        about=ABOUT_EXTENSION,
    log:
        f"{RESULTS}/logs/build_extension.log",
    priority: ORDER.before_all
    conda:
        "../envs/gpufeed.yaml"
    threads: cores_of_extension
    resources:
        cpus_per_task=cores_of_extension,
    params:
        cpu_alone=config["device"] == "cpu",
        attempt=lambda wildcards: attempt_at(ABOUT_EXTENSION, "cpu"),  # a GPU or none: both may build all
        code=digest(
            "ops/csrc/**/*.*",
            *(f"ops/{name}.py" for name in ("build", "compiling", "library", "sources", "toolkit")),
        ),
    script:
        "../workflow/scripts/build_extension.py"
