"""All repeats so far of an experiment -> whether another block is needed."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    from gpufeed.benchmarks.stopping_rule import decide

    job.write_json(decide(job.input, job.params.within))


if __name__ == "__main__":
    run(snakemake, work)
