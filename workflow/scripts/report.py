"""The records that exist, own or published -> the report; starts no cell and says what is missing."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    from gpufeed.report.publish import for_job

    for_job(job)


if __name__ == "__main__":
    run(snakemake, work)
