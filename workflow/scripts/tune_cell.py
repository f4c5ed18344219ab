"""Find the fastest settings of the loader of one cell, on the node that measures it."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    from gpufeed.advice.tuner import for_job

    for_job(job)


if __name__ == "__main__":  # where workers are spawned and not forked, they import this file again
    run(snakemake, work, on_cores=True)
