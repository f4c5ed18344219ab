# Records, against those of the folder `baseline` -> which cells became slower.


rule compare:
    input:
        records=lambda wildcards: records_of(wildcards.experiment),
        baseline=baseline_of,
    output:
        table=report(
            f"{RESULTS}/comparison/{{experiment}}.csv",
            caption="../workflow/report/comparison.rst",
            category="{experiment}",
            labels={"what": "against the baseline", "kind": "table"},
        ),
        markdown=f"{RESULTS}/comparison/{{experiment}}.md",
    log:
        f"{RESULTS}/logs/compare/{{experiment}}.log",
    conda:
        "../envs/gpufeed.yaml"
    params:
        names=[RESULTS, config["baseline"]],
        code=ANALYSIS_CODE,
    script:
        "../workflow/scripts/compare.py"


# what plain `snakemake` compares: nothing, unless the config names a baseline
COMPARISONS = [f"{RESULTS}/comparison/{name}.csv" for name in config["run"] if config["baseline"]]
