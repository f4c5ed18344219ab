"""Records of an experiment, and those that they are held against -> the comparison: CSV and Markdown."""

from gpufeed import orphan

if __name__ == "__main__":
    orphan.end_with_snakemake()

from gpufeed.analysis.publish_comparison import write_comparison
from gpufeed.log import job_log

with job_log(snakemake.log[0]):  # noqa: F821
    job = snakemake  # noqa: F821
    write_comparison(
        job.input.records, job.input.baseline, job.params.names, job.output.table, job.output.markdown
    )
