# Records, against those of the folder `baseline` -> which cells became slower.

from gpufeed.baseline import baseline_records


def baseline_of(wildcards):
    """The records of an experiment in the folder that it is held against."""
    if not config["baseline"]:
        raise WorkflowError(
            "found: no folder `baseline` in the config\n"
            "expected: the folder of the results that these are held against\n"
            "what to do: --config baseline=results/reference/h200, or python -m gpufeed.compare A B"
        )
    try:
        return [str(path) for path in baseline_records(config["baseline"], wildcards.experiment)]
    except GpufeedError as error:
        raise WorkflowError(f"the results cannot be compared\n{error}")


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
