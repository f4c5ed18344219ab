"""Ceilings of an experiment's cells -> their table and their figure."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    from gpufeed.report.publish import plot_ceilings

    plot_ceilings(job.input, job.output.table, job.output.figure)


if __name__ == "__main__":
    run(snakemake, work)
