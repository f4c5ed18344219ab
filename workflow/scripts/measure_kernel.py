"""Measure kernels alone, those of the augments or of an MLP, beside a copy of as many bytes."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    from gpufeed.benchmarks.kernels.kernel_benchmark import for_job

    for_job(job)


if __name__ == "__main__":
    run(snakemake, work)
