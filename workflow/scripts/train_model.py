"""Train one cell once and keep its model; write the weights, then what is known of them."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    from gpufeed.benchmarks.saved_models.train_model import for_job

    for_job(job)


if __name__ == "__main__":  # where workers are spawned and not forked, they import this file again
    run(snakemake, work)
