"""Records of an experiment -> its two tables."""

from gpufeed import orphan

if __name__ == "__main__":
    orphan.end_with_snakemake()

from gpufeed.analysis.publish import tabulate
from gpufeed.log import job_log

with job_log(snakemake.log[0]):  # noqa: F821
    job = snakemake  # noqa: F821
    tabulate(job.input.records, job.output.cells, job.output.batches)
