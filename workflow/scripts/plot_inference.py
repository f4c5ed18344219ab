"""Measurements of an experiment's models in use -> their table and their figure."""

from gpufeed import orphan

if __name__ == "__main__":
    orphan.end_with_snakemake()

from gpufeed.analysis.inference_section import publish
from gpufeed.log import job_log

with job_log(snakemake.log[0]):  # noqa: F821
    job = snakemake  # noqa: F821
    publish(job.input, job.output.table, job.output.figure)
