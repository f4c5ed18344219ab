# One cell through one prepared step, with its loader and without -> its ceilings; a table and a figure of all.


rule measure_ceilings:
    input:
        unpack(needs_of),
    output:
        ceilings=f"{RESULTS}/ceilings/{{experiment}}/{{cell}}.json",
    log:
        f"{RESULTS}/logs/measure_ceilings/{{experiment}}/{{cell}}.log",
    conda:
        "../envs/gpufeed.yaml"
    threads: cores_of_cell
    resources:
        **of_gpu_jobs(),
        cpus_per_task=cores_of_cell,
        gpu=gpus_of_cell,
    params:
        cell=identity_of,
        settings=settings_of_ceilings,
        attempt=lambda wildcards: attempt_at(
            f"{RESULTS}/ceilings/{wildcards.experiment}/{wildcards.cell}.json"
        ),
        code=code_of_ceilings,
    script:
        "../workflow/scripts/measure_ceilings.py"


rule plot_ceilings:
    input:
        lambda wildcards: ceilings_of(wildcards.experiment),
    output:
        table=report(
            f"{RESULTS}/tables/{{experiment}}/ceilings.csv",
            caption="../workflow/report/ceilings_table.rst",
            category="{experiment}",
            labels={"what": "how far from the limit", "kind": "table"},
        ),
        figure=report(
            f"{RESULTS}/figures/{{experiment}}/ceilings.svg",
            caption="../workflow/report/ceilings.rst",
            category="{experiment}",
            labels={"what": "how far from the limit", "kind": "figure"},
        ),
    log:
        f"{RESULTS}/logs/plot_ceilings/{{experiment}}.log",
    conda:
        "../envs/gpufeed.yaml"
    params:
        code=ANALYSIS_CODE,
    script:
        "../workflow/scripts/plot_ceilings.py"
