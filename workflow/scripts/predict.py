"""Ask a kept model about image files; a file without a prediction has a row with the reason."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    from gpufeed.benchmarks.saved_models.prediction import for_job

    for_job(job)


if __name__ == "__main__":
    run(snakemake, work)
