"""Run one repeat of one cell; write its steps, then its record, which vouches for both."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    from gpufeed.benchmarks.end_to_end import for_job
    from gpufeed.tracking.epoch_tracking import track_repeat

    # tracking is from the config and not from params: it does not change the repeat
    track_repeat(for_job(job), job.config["tracking"], job.config["results"], job.wildcards.repeat)


if __name__ == "__main__":  # where workers are spawned and not forked, they import this file again
    run(snakemake, work, on_cores=True)
