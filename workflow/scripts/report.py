"""The records that exist, own or published -> the report; starts no cell and says what is missing."""

from gpufeed import orphan

if __name__ == "__main__":
    orphan.end_with_snakemake()

from pathlib import Path

from gpufeed.analysis.publish import report, say_missing
from gpufeed.log import job_log

with job_log(snakemake.log[0]):  # noqa: F821
    job = snakemake  # noqa: F821
    found = report(job.params.results, job.params.experiments, job.params.plan, job.params.report)
    print(f"report: {Path(job.params.report).resolve()}")
    if missing := say_missing(found, job.params.plan):
        print(missing)
