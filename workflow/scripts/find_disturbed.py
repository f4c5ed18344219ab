"""All repeats so far of an experiment -> which of them are measured once more."""

from gpufeed import orphan

if __name__ == "__main__":
    orphan.end_with_snakemake()

import json

from gpufeed.analysis.files import write_whole
from gpufeed.log import job_log
from gpufeed.repeats import disturbed

with job_log(snakemake.log[0]):  # noqa: F821
    job = snakemake  # noqa: F821
    write_whole(job.output[0], json.dumps({"again": disturbed(job.input)}, indent=1) + "\n")
