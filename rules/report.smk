# Records -> tables -> figures -> one page.


rule tabulate:
    input:
        records=REPEATS.records_of,
        advice=REPORT.advice_of,
    output:
        cells=report(
            f"{RESULTS}/tables/{{experiment}}/cells.csv",
            caption="../workflow/report/cells.rst",
            category="{experiment}",
            labels={"what": "cells", "kind": "table"},
        ),
        batches=report(
            f"{RESULTS}/tables/{{experiment}}/batches.csv",
            caption="../workflow/report/batches.rst",
            category="{experiment}",
            labels={"what": "batch by batch", "kind": "table"},
        ),
    log:
        f"{RESULTS}/logs/tabulate/{{experiment}}.log",
    conda:
        "../envs/gpufeed.yaml"
    params:
        code=CODES.of_report("tabulate"),
    script:
        "../workflow/scripts/tabulate.py"


rule plot:
    input:
        records=REPEATS.records_of,
    output:
        throughput=report(
            f"{RESULTS}/figures/{{experiment}}/throughput.svg",
            caption="../workflow/report/throughput.rst",
            category="{experiment}",
            labels={"what": "images per second", "kind": "figure"},
        ),
        breakdown=report(
            f"{RESULTS}/figures/{{experiment}}/breakdown.svg",
            caption="../workflow/report/breakdown.rst",
            category="{experiment}",
            labels={"what": "where a step goes", "kind": "figure"},
        ),
        workers=report(
            f"{RESULTS}/figures/{{experiment}}/workers.svg",
            caption="../workflow/report/workers.rst",
            category="{experiment}",
            labels={"what": "workers", "kind": "figure"},
        ),
        timeline=report(
            f"{RESULTS}/figures/{{experiment}}/timeline.svg",
            caption="../workflow/report/timeline.rst",
            category="{experiment}",
            labels={"what": "time line of a batch", "kind": "figure"},
        ),
    log:
        f"{RESULTS}/logs/plot/{{experiment}}.log",
    conda:
        "../envs/gpufeed.yaml"
    params:
        experiment=lambda wildcards: wildcards.experiment,
        code=CODES.of_report("plot"),
    script:
        "../workflow/scripts/plot.py"


rule plot_side_by_side:
    input:
        records=REPEATS.records_of,
    output:
        table=report(
            f"{RESULTS}/tables/{{experiment}}/side_by_side.csv",
            caption="../workflow/report/side_by_side_table.rst",
            category="{experiment}",
            labels={"what": "two pipelines side by side", "kind": "table"},
        ),
        phases=report(
            f"{RESULTS}/figures/{{experiment}}/side_by_side.svg",
            caption="../workflow/report/side_by_side.rst",
            category="{experiment}",
            labels={"what": "two pipelines side by side", "kind": "figure"},
        ),
        totals=report(
            f"{RESULTS}/figures/{{experiment}}/side_by_side_totals.svg",
            caption="../workflow/report/side_by_side_totals.rst",
            category="{experiment}",
            labels={"what": "totals side by side", "kind": "figure"},
        ),
    log:
        f"{RESULTS}/logs/plot_side_by_side/{{experiment}}.log",
    conda:
        "../envs/gpufeed.yaml"
    params:
        pair=REPORT.pair_of,
        code=CODES.of_report("plot_side_by_side"),
    script:
        "../workflow/scripts/plot_side_by_side.py"


rule assemble_report:
    input:
        REPORT.parts_of_page,
    output:
        report=report(
            f"{RESULTS}/report{{scope}}.html",
            caption="../workflow/report/report.rst",
            category="the whole report",
            labels={"what": "report", "kind": "page"},
        ),
    log:
        f"{RESULTS}/logs/assemble_report/report{{scope}}.log",
    wildcard_constraints:
        scope="|".join(["", *(f"-{name}" for name in PLAN.cells)]),
    conda:
        "../envs/gpufeed.yaml"
    params:
        plan=REPORT.plan_info,  # a function: repeats may have been added by then
        results=lambda wildcards, output: str(Path(output.report).parent),
        experiments=REPORT.scope_of,
        code=CODES.of_report("assemble_report"),
    script:
        "../workflow/scripts/assemble_report.py"


# `snakemake report`: a report of the existing records; without input, it starts no measurement
rule report:
    log:
        f"{RESULTS}/logs/report.log",
    localrule: True
    conda:
        "../envs/gpufeed.yaml"
    params:
        plan=REPORT.plan_info(),
        results=RESULTS,
        experiments=config["run"],
        report=f"{RESULTS}/report.html",
    script:
        "../workflow/scripts/report.py"


for name in PLAN.cells:  # targets such as `snakemake pipelining`

    rule:
        name:
            name
        input:
            f"{RESULTS}/report-{name}.html",
            lambda wildcards, name=name: REPORT.parts_of([name]),
        localrule: True
