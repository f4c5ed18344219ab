"""Records of an experiment, and those that they are compared with -> the comparison: CSV and Markdown."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    from gpufeed.report import publish

    given, out = job.input, job.output
    publish.compare(given.records, given.baseline, job.params.names, out.table, out.markdown)


if __name__ == "__main__":
    run(snakemake, work)
