"""Make the INT8 file of an exported model, calibrated on training images, and list it."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    from gpufeed.benchmarks.inference.quantise import for_job

    for_job(job)


if __name__ == "__main__":  # where workers are spawned and not forked, they import this file again
    run(snakemake, work)
