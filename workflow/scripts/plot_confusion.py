"""An evaluation -> the figure of its confusion matrix."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    from gpufeed.report.publish import plot_confusion

    plot_confusion(job.input[0], job.output.confusion)


if __name__ == "__main__":
    run(snakemake, work)
