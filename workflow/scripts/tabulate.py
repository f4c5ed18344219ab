"""Records of an experiment -> its two tables."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    from gpufeed.report.publish import tabulate

    tabulate(job.input.records, job.output.cells, job.output.batches, job.input.get("advice") or [])


if __name__ == "__main__":
    run(snakemake, work)
