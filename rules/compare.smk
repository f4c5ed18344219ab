# Records, compared with those of the folder `baseline` -> which cells became slower.


rule compare:
    input:
        records=REPEATS.records_of,
        baseline=REPORT.baseline_of,
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
        code=CODES.of_report("compare"),
    script:
        "../workflow/scripts/compare.py"
