"""Check a loader against the reference and write the verdict, which is final if it passed."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    from gpufeed.benchmarks.equivalence.supervised import for_job

    for_job(job)


if __name__ == "__main__":  # where workers are spawned and not forked, they import this file again
    run(snakemake, work, forks=True)
