"""Join a dataset's JPEG files into strips."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    from gpufeed.stores.strips_build import for_job

    for_job(job)


if __name__ == "__main__":  # where workers are spawned and not forked, they import this file again
    run(snakemake, work)
