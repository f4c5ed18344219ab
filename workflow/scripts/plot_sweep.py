"""Sweeps of an experiment -> its two figures."""

from gpufeed import orphan

if __name__ == "__main__":
    orphan.end_with_snakemake()

from gpufeed.analysis.publish_sweeps import plot
from gpufeed.log import job_log

with job_log(snakemake.log[0]):  # noqa: F821
    job = snakemake  # noqa: F821
    plot(job.input, job.output.crossover, job.output.decoding)
