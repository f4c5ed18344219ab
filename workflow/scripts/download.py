"""One file of a dataset, from a folder of archives or a URL, checked."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    from gpufeed.datasets.download import for_job

    for_job(job)


if __name__ == "__main__":
    run(snakemake, work)
