# Cells of an experiment with `advice` -> probes of seconds -> predicted rates -> the cells to measure.


rule probe_cell:
    input:
        unpack(DATASETS.needs_of_probe),
    output:
        probe=f"{RESULTS}/probes/{{experiment}}/{{cell}}.json",
    log:
        f"{RESULTS}/logs/probe_cell/{{experiment}}/{{cell}}.log",
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
        attempt=lambda wildcards: RUN.attempt_at(
            f"{RESULTS}/probes/{wildcards.experiment}/{wildcards.cell}.json"
        ),
        code=CODES.of_training("probe_cell"),
    script:
        "../workflow/scripts/probe_cell.py"


checkpoint advise:
    input:
        unpack(BENCHMARKS.inputs_of_advice),
    output:
        REPEATS.advice_on("{experiment}"),
    log:
        f"{RESULTS}/logs/advise/{{experiment}}.log",
    priority: SCHEDULE.before_all
    localrule: True  # seconds of one core
    conda:
        "../envs/gpufeed.yaml"
    params:
        asked=lambda wildcards: RUN.advised[wildcards.experiment],
        code=CODES.of("advise"),
    script:
        "../workflow/scripts/advise.py"
