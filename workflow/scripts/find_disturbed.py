"""All repeats so far of an experiment -> which of them are measured once more."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    from gpufeed.core.repeats import disturbed

    job.write_json({"again": disturbed(job.input)})


if __name__ == "__main__":
    run(snakemake, work)
