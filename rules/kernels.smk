# Kernels alone, of the augments or of an MLP's activation -> times, bytes and shares of the copy bandwidth.


rule measure_kernel:
    input:
        extension=extension_of_kernels,
    output:
        f"{RESULTS}/kernels/{{experiment}}.json",
    log:
        f"{RESULTS}/logs/measure_kernel/{{experiment}}.log",
    conda:
        "../envs/gpufeed.yaml"
    threads: cores_of_job
    resources:
        **of_gpu_jobs(),
        cpus_per_task=cores_of_job,
        gpu=GPU_JOBS,
    params:
        settings=lambda wildcards: kernels_of(wildcards.experiment),
        device=config["device"],
        attempt=lambda wildcards: attempt_at(f"{RESULTS}/kernels/{wildcards.experiment}.json"),
        code=code_of_kernels,
    script:
        "../workflow/scripts/measure_kernel.py"
