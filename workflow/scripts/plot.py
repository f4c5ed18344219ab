"""Records of an experiment -> its figures."""

from gpufeed.analysis.publish import plot
from gpufeed.log import job_log

with job_log(snakemake.log[0]):  # noqa: F821
    job = snakemake  # noqa: F821
    drawn = job.output
    plot(job.input.records, drawn.throughput, drawn.breakdown, drawn.workers, drawn.timeline)
