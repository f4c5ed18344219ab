"""Everything that was measured -> the report."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    from gpufeed.report.publish import report

    report(job.params.results, job.params.experiments, job.params.plan, job.output.report)


if __name__ == "__main__":
    run(snakemake, work)
