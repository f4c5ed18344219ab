"""Everything that was measured -> the report."""

from gpufeed import orphan

if __name__ == "__main__":
    orphan.end_with_snakemake()

from gpufeed.analysis.publish import report
from gpufeed.log import job_log

with job_log(snakemake.log[0]):  # noqa: F821
    job = snakemake  # noqa: F821
    report(job.params.results, job.params.experiments, job.params.plan, job.output.report)
