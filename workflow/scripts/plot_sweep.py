"""Sweeps of an experiment -> its two figures."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    from gpufeed.report.publish import plot_sweep

    plot_sweep(job.input, job.output.crossover, job.output.decoding)


if __name__ == "__main__":
    run(snakemake, work)
