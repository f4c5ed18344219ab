"""Records of an experiment -> its figures."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    from gpufeed.report.publish import plot

    drawn = job.output
    plot(job.input.records, drawn.throughput, drawn.breakdown, drawn.workers, drawn.timeline)


if __name__ == "__main__":
    run(snakemake, work)
