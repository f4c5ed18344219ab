"""Measurements of an experiment's models in use -> their table and their figure."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    from gpufeed.report.publish import plot_inference

    plot_inference(job.input, job.output.table, job.output.figure)


if __name__ == "__main__":
    run(snakemake, work)
