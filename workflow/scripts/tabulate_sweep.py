"""Sweeps of an experiment -> the table of decoders."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    from gpufeed.report.publish import tabulate_sweep

    tabulate_sweep(job.input, job.output.decoders)


if __name__ == "__main__":
    run(snakemake, work)
