"""Records of two pipelines -> a table of means and two figures; print the comparison."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    from gpufeed.report.publish import plot_side_by_side

    out = job.output
    for line in plot_side_by_side(job.input.records, job.params.pair, out.table, out.phases, out.totals):
        print(line, flush=True)


if __name__ == "__main__":
    run(snakemake, work)
