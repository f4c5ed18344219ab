"""Records of an experiment -> its figures."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    from gpufeed.report.publish import plot

    out = job.output
    plot(job.input.records, out.throughput, out.breakdown, out.workers, out.timeline)


if __name__ == "__main__":
    run(snakemake, work)
