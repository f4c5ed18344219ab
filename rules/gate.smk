# A loader with one setting, compared with the files decoded by Pillow -> the verdict that its cells wait for.


rule gate:
    input:
        unpack(DATASETS.read_of),
        reference=GATES.reference_of,
    output:
        verdict=f"{RESULTS}/gate/{{dataset}}/{{loader}}/{{variant}}.json",
    log:
        f"{RESULTS}/logs/gate/{{dataset}}/{{loader}}/{{variant}}.log",
    priority: SCHEDULE.before_all
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


# A cell with `settings: tuned` -> the fastest settings of its loader on this node, and the verdict on these.
rule tune_cell:
    input:
        unpack(DATASETS.needs_of),
    output:
        tuned=GATES.tuning_of("{experiment}", "{cell}"),
    log:
        f"{RESULTS}/logs/tune_cell/{{experiment}}/{{cell}}.log",
    priority: SCHEDULE.before_all
    conda:
        "../envs/gpufeed.yaml"
    threads: RESOURCES.cores_of_cell
    resources:
        **RESOURCES.of_gpu_jobs(),
        cpus_per_task=RESOURCES.cores_of_cell,
        gpu=RESOURCES.gpus_of_cell,
    params:
        cell=RUN.identity_of,
        attempt=lambda wildcards: RUN.attempt_at(GATES.tuning_of(wildcards.experiment, wildcards.cell)),
        code=CODES.of_training("tune_cell"),
    script:
        "../workflow/scripts/tune_cell.py"


rule gate_tuned:
    input:
        unpack(DATASETS.read_of),
        reference=GATES.reference_of_cell,
        tuned=GATES.tuning_of("{experiment}", "{cell}"),
    output:
        verdict=GATES.tuned_verdict_of("{experiment}", "{cell}"),
    log:
        f"{RESULTS}/logs/gate_tuned/{{experiment}}/{{cell}}.log",
    priority: SCHEDULE.before_all
    conda:
        "../envs/gpufeed.yaml"
    threads: RESOURCES.cores_of_evaluation
    resources:
        **RESOURCES.of_gpu_jobs(),
        cpus_per_task=RESOURCES.cores_of_evaluation,
        gpu=RUN.gpu_jobs,
    params:
        cell=RUN.identity_of,
        device=config["device"],
        attempt=lambda wildcards: RUN.attempt_at(GATES.tuned_verdict_of(wildcards.experiment, wildcards.cell)),
        code=lambda wildcards: CODES.of(
            "gate_tuned",
            loader=RUN.cell_of(wildcards).loader,
            decoder=CODES.decoders_of(RUN.cell_of(wildcards)),
        ),
    script:
        "../workflow/scripts/gate_tuned.py"
