"""Records of two pipelines -> a table of means and two figures; print the comparison."""

from gpufeed import orphan

if __name__ == "__main__":
    orphan.end_with_snakemake()

from gpufeed.analysis.publish import side_by_side
from gpufeed.log import job_log

with job_log(snakemake.log[0]):  # noqa: F821
    job = snakemake  # noqa: F821
    drawn = job.output
    for line in side_by_side(job.input.records, job.params.pair, drawn.table, drawn.phases, drawn.totals):
        print(line, flush=True)
