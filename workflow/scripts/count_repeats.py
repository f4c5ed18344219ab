"""All repeats so far of an experiment -> whether another block is needed."""

from gpufeed import orphan

if __name__ == "__main__":
    orphan.end_with_snakemake()

import json

from gpufeed.analysis.files import write_whole
from gpufeed.enough import decide
from gpufeed.log import job_log

with job_log(snakemake.log[0]):  # noqa: F821
    job = snakemake  # noqa: F821
    found = decide(job.input, job.params.within)
    write_whole(job.output[0], json.dumps(found, indent=1) + "\n")
