"""Decode a dataset once into its cache."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    if job.input.get("strips"):
        from gpufeed.stores.strips_to_cache import for_job  # with torch: most decoders need not wait for it
    else:
        from gpufeed.stores.decoded_cache import for_job
    for_job(job)


if __name__ == "__main__":  # where workers are spawned and not forked, they import this file again
    run(snakemake, work)
