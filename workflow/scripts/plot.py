"""Records of an experiment -> its figures."""

from gpufeed.analysis.publish import plot
from gpufeed.log import job_log

with job_log(snakemake.log[0]):  # noqa: F821
    job = snakemake  # noqa: F821
    plot(job.input.records, job.output.throughput, job.output.breakdown, job.output.workers)
