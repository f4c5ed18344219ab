"""Measure one decoder over all points of a sweep."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    from gpufeed.benchmarks.decoder_benchmark import for_job

    for_job(job)


if __name__ == "__main__":  # where workers are spawned and not forked, they import this file again
    run(snakemake, work)
