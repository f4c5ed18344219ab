# One repeat of one cell, in a fresh process -> its record; a repeat that was disturbed gets a second one.


rule measure_cell:
    input:
        unpack(DATASETS.needs_of_repeat),
    output:
        record=f"{RESULTS}/records/{{experiment}}/{{cell}}/{{repeat}}.json",
        steps=f"{RESULTS}/records/{{experiment}}/{{cell}}/{{repeat}}.steps.parquet",
    log:
        f"{RESULTS}/logs/measure_cell/{{experiment}}/{{cell}}/{{repeat}}.log",
    priority: lambda wildcards: SCHEDULE.priority(wildcards.experiment, wildcards.cell, number_of(wildcards.repeat))
    conda:
        "../envs/gpufeed.yaml"
    threads: RESOURCES.cores_of_cell
    resources:
        **RESOURCES.of_trainings(),
        cpus_per_task=RESOURCES.cores_of_cell,
        gpu=RESOURCES.gpus_of_cell,
    params:
        cell=RUN.identity_of,
        # with `output` Snakemake does not compare it: it compares params as one set, in which 2 could be an attempt, too
        repeat=lambda wildcards, output: number_of(wildcards.repeat),
        least_s=config["least_s"],
        attempt=REPEATS.attempt_of,
        code=CODES.of_training("measure_cell"),
    script:
        "../workflow/scripts/measure_cell.py"


# All repeats of an experiment so far -> those to measure once more, since other processes used the cores. With
# `repeats: auto`, the next rule decides whether another block is needed. Snakemake adds both.
checkpoint find_disturbed:
    input:
        lambda wildcards: REPEATS.first_records(wildcards.experiment, int(wildcards.repeats)),
    output:
        REPEATS.disturbed_in("{experiment}", "{repeats}"),
    log:
        f"{RESULTS}/logs/find_disturbed/{{experiment}}/{{repeats}}.log",
    priority: SCHEDULE.before_all
    localrule: True  # seconds of one core
    conda:
        "../envs/gpufeed.yaml"
    params:
        code=CODES.of("find_disturbed"),
    script:
        "../workflow/scripts/find_disturbed.py"


checkpoint count_repeats:
    input:
        lambda wildcards: REPEATS.measured(wildcards.experiment, int(wildcards.repeats)),
    output:
        REPEATS.decision_on("{experiment}", "{repeats}"),
    log:
        f"{RESULTS}/logs/count_repeats/{{experiment}}/{{repeats}}.log",
    priority: SCHEDULE.before_all
    localrule: True  # seconds of one core
    conda:
        "../envs/gpufeed.yaml"
    params:
        within=lambda wildcards: REPEATS.auto_of(wildcards.experiment).within,
        code=CODES.of("count_repeats"),
    script:
        "../workflow/scripts/count_repeats.py"
