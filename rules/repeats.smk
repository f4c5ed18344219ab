# All repeats so far of an experiment -> which of them are measured once more, since other processes used the cores;
# with `repeats: auto` then whether another block is needed. Snakemake adds both.


checkpoint find_disturbed:
    input:
        lambda wildcards: first_records_of(wildcards.experiment, int(wildcards.repeats)),
    output:
        disturbed_in("{experiment}", "{repeats}"),
    log:
        f"{RESULTS}/logs/find_disturbed/{{experiment}}/{{repeats}}.log",
    priority: ORDER.before_all
    localrule: True  # seconds of one core
    conda:
        "../envs/gpufeed.yaml"
    params:
        code=digest("repeats.py"),
    script:
        "../workflow/scripts/find_disturbed.py"


checkpoint count_repeats:
    input:
        lambda wildcards: measured_so_far(wildcards.experiment, int(wildcards.repeats)),
    output:
        decision_on("{experiment}", "{repeats}"),
    log:
        f"{RESULTS}/logs/count_repeats/{{experiment}}/{{repeats}}.log",
    priority: ORDER.before_all
    localrule: True  # seconds of one core
    conda:
        "../envs/gpufeed.yaml"
    params:
        within=lambda wildcards: auto_of(wildcards.experiment).within,
        code=digest("enough.py", "repeats.py", "analysis/statistics.py"),
    script:
        "../workflow/scripts/count_repeats.py"
