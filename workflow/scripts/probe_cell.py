"""Probe one cell for its predicted rate: compute only, input only, and what each takes of the machine."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    from gpufeed.benchmarks.probe import for_job

    for_job(job)


if __name__ == "__main__":  # where workers are spawned and not forked, they import this file again
    run(snakemake, work, on_cores=True)
