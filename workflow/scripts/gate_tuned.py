"""Check a loader with tuned settings against the reference, as script gate does with those of the config."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    from gpufeed.benchmarks.equivalence.equivalence_task import task_of_tuned
    from gpufeed.benchmarks.equivalence.supervised import for_job

    for_job(job, task_of_tuned)


if __name__ == "__main__":  # where workers are spawned and not forked, they import this file again
    run(snakemake, work, forks=True)
