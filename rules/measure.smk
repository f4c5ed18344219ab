# One cell, one repeat, one fresh process -> one record. A repeat that is measured once more has a second one.


rule measure_cell:
    input:
        unpack(needs_of_repeat),
    output:
        record=f"{RESULTS}/records/{{experiment}}/{{cell}}/{{repeat}}.json",
        steps=f"{RESULTS}/records/{{experiment}}/{{cell}}/{{repeat}}.steps.parquet",
    log:
        f"{RESULTS}/logs/measure_cell/{{experiment}}/{{cell}}/{{repeat}}.log",
    priority: lambda wildcards: ORDER.priority(wildcards.experiment, wildcards.cell, number_of(wildcards.repeat))
    conda:
        "../envs/gpufeed.yaml"
    threads: cores_of_cell
    resources:
        **of_trainings(),
        cpus_per_task=cores_of_cell,
        gpu=gpus_of_cell,
    params:
        cell=identity_of,
        repeat=lambda wildcards: number_of(wildcards.repeat),
        least_s=config["least_s"],
        attempt=attempt_of,
        code=code_of_cell,
    script:
        "../workflow/scripts/measure_cell.py"
