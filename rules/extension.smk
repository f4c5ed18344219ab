# C++ and CUDA sources -> the library of bias-GELU, for models whose activation it is.

from gpufeed.models.vit_options import BY_EXTENSION

EXTENSION = f"{RESULTS}/extension/gpufeed_ops.so"
ABOUT_EXTENSION = f"{RESULTS}/extension/gpufeed_ops.json"


def extension_of(wildcards):
    """The library of a cell whose model's activation is a kernel of ours."""
    activation = cell_of(wildcards).hyper["model"].get("activation")
    return EXTENSION if activation in BY_EXTENSION else []


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
