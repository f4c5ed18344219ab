"""Decode a dataset of several sizes once into a cache of images with one short side."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    from gpufeed.stores.decoded_cache import build_named, log_built

    log_built(build_named(job.manifest, job.output.cache, job.threads))


if __name__ == "__main__":  # where workers are spawned and not forked, they import this file again
    run(snakemake, work)
