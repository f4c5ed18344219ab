"""Records of an experiment -> its figures."""

from gpufeed import orphan

if __name__ == "__main__":
    orphan.end_with_snakemake()

from gpufeed.analysis.publish import plot
from gpufeed.log import job_log

with job_log(snakemake.log[0]):  # noqa: F821
    job = snakemake  # noqa: F821
    drawn = job.output
    plot(job.input.records, drawn.throughput, drawn.breakdown, drawn.workers, drawn.timeline)
