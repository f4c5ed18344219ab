"""Measure the ceilings of one cell: end to end and compute only in turn, input only, and its stages."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    from gpufeed.benchmarks.ceilings.ceiling_benchmark import for_job
    from gpufeed.report.sections import ceilings_verdict

    for_job(job, lambda found: ceilings_verdict.of(found).sentence)


if __name__ == "__main__":  # where workers are spawned and not forked, they import this file again
    run(snakemake, work, on_cores=True)
