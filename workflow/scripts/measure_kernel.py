"""Measures kernels alone, those of the augments or of an MLP, beside a copy of as many bytes."""

from gpufeed import orphan

if __name__ == "__main__":
    orphan.end_with_snakemake()

import sys

from gpufeed import attempts, leases
from gpufeed.kernels.measure import measure_kernels
from gpufeed.kernels.record import write
from gpufeed.log import job_log
from gpufeed.node import node_name

if __name__ == "__main__":
    with job_log(snakemake.log[0]):  # noqa: F821
        job = snakemake  # noqa: F821
        leases.take(1, job.params.device)
        found = measure_kernels(
            job.wildcards.experiment,
            job.params.settings,
            planned_on=node_name(),
            device=job.params.device,
            attempt=job.params.attempt,
            extension=job.input.get("extension") or None,
        )
        attempts.ended(job.output[0], found["attempt"])
        write(found, job.output[0])
        if found["sentence"]:
            print(f"kernels {found['status']}: {found['sentence']}", file=sys.stderr)
