# All repeats so far of an experiment with `repeats: auto` -> whether another block is needed; then Snakemake adds it.


checkpoint count_repeats:
    input:
        lambda wildcards: first_records_of(wildcards.experiment, int(wildcards.repeats)),
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
        code=digest("enough.py", "analysis/statistics.py"),
    script:
        "../workflow/scripts/count_repeats.py"
