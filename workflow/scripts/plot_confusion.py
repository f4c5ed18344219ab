"""An evaluation -> the figure of its confusion matrix."""

from gpufeed import orphan

if __name__ == "__main__":
    orphan.end_with_snakemake()

from gpufeed.analysis.confusion import plot
from gpufeed.log import job_log

with job_log(snakemake.log[0]):  # noqa: F821
    plot(snakemake.input[0], snakemake.output.confusion)  # noqa: F821
