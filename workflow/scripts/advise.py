"""All probes of an experiment -> predicted rates, and which cells are measured."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    from gpufeed.advice.ranking import for_job

    for_job(job)


if __name__ == "__main__":
    run(snakemake, work)
