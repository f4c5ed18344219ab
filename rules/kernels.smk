# The kernels of the augments, alone -> times, bytes and shares of the copy bandwidth.


rule measure_kernel:
    output:
        f"{RESULTS}/kernels/{{experiment}}.json",
    log:
        f"{RESULTS}/logs/measure_kernel/{{experiment}}.log",
    conda:
        "../envs/gpufeed.yaml"
    threads: cores_of_job
    resources:
        cpus_per_task=cores_of_job,
        gpu=GPU_JOBS,
    params:
        settings=lambda wildcards: kernels_of(wildcards.experiment),
        device=config["device"],
        attempt=lambda wildcards: attempt_at(f"{RESULTS}/kernels/{wildcards.experiment}.json"),
        code=lambda wildcards: digest("kernels/*.py", "augment/*.py", "heap.py"),
    script:
        "../workflow/scripts/measure_kernel.py"
