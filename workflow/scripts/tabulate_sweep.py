"""Sweeps of an experiment -> the table of decoders."""

from gpufeed import orphan

if __name__ == "__main__":
    orphan.end_with_snakemake()

from gpufeed.analysis.publish_sweeps import tabulate
from gpufeed.log import job_log

with job_log(snakemake.log[0]):  # noqa: F821
    tabulate(snakemake.input, snakemake.output.decoders)  # noqa: F821
