"""Compile the extension; what the node lacks for it is written down."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    from gpufeed.native.build import for_job

    for_job(job)


if __name__ == "__main__":
    run(snakemake, work)
