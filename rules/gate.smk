# A loader with one setting on a dataset, held against the files decoded by Pillow -> the verdict that its cells wait for.


rule gate:
    input:
        unpack(DATASETS.read_of),
        reference=GATES.reference_of,
    output:
        verdict=f"{RESULTS}/gate/{{dataset}}/{{loader}}/{{variant}}.json",
    log:
        f"{RESULTS}/logs/gate/{{dataset}}/{{loader}}/{{variant}}.log",
    priority: ORDER.before_all
    conda:
        "../envs/gpufeed.yaml"
    threads: RESOURCES.cores_of_gate
    resources:
        **RESOURCES.of_gpu_jobs(),
        cpus_per_task=RESOURCES.cores_of_gate,
        gpu=RUN.gpu_jobs,
    params:
        settings=GATES.settings_judged,
        device=config["device"],
        attempt=GATES.attempt_of,
        loader=GATES.loader_of,
        code=lambda wildcards: CODES.of(
            "gate", loader=GATES.loader_of(wildcards), decoder=GATES.decoders_of(wildcards)
        ),
    script:
        "../workflow/scripts/gate.py"
