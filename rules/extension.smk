# C++ and CUDA sources -> the library of bias-GELU, for models whose activation it is.


rule build_extension:
    output:
        library=EXTENSION,
        about=Path(EXTENSION).with_suffix(".json"),
    log:
        f"{RESULTS}/logs/build_extension.log",
    conda:
        "../envs/gpufeed.yaml"
    threads: cores_of_extension
    resources:
        cpus_per_task=cores_of_extension,
    params:
        code=digest("ops/csrc/**/*.*", "ops/build.py", "ops/compiling.py", "ops/toolkit.py"),
    script:
        "../workflow/scripts/build_extension.py"
