"""Write a dataset's files into tar shards."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    from gpufeed.stores.shards_build import build

    shards = build(job.manifest, job.output.index, workers=job.threads).shards
    size = sum(shard.size for shard in shards)
    job.logger.info("%d files in %d shards, %d bytes", len(job.manifest), len(shards), size)


if __name__ == "__main__":  # where workers are spawned and not forked, they import this file again
    run(snakemake, work)
