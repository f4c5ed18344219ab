"""Write a dataset into a file of FFCV's format."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    from gpufeed.stores.ffcv_build import build

    info = build(job.manifest, job.output.beton, workers=job.threads)
    job.logger.info("%d images, %d of them as JPEGs, %d bytes", info.count, info.jpegs, info.size)


if __name__ == "__main__":  # where workers are spawned and not forked, they import this file again
    run(snakemake, work)
