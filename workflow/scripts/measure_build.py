"""Times the builds of one decoder, one fresh process."""

from gpufeed import orphan

if __name__ == "__main__":
    orphan.end_with_snakemake()

import sys
from pathlib import Path

from gpufeed import attempts, leases
from gpufeed.build_time import measure_build
from gpufeed.log import job_log
from gpufeed.node import node_name
from gpufeed.registry import takes_gpu

if __name__ == "__main__":  # worker processes may import this file again
    with job_log(snakemake.log[0]):  # noqa: F821
        job = snakemake  # noqa: F821
        leases.take(takes_gpu(job.wildcards.decoder))
        if job.input.get("extension"):
            from gpufeed import ops  # with torch

            ops.load(job.input.extension)
        times = measure_build(
            job.input.manifest,
            job.wildcards.experiment,
            job.wildcards.decoder,
            job.wildcards.cores,
            job.params.counts,
            Path(job.input.manifest).parent / "build_times",
            planned_on=node_name(),
            attempt=job.params.attempt,
            threads=job.threads,
        )
        attempts.ended(job.output[0], times.attempt)
        times.write(job.output[0])
        if times.sentence:
            print(f"builds by {times.decoder} {times.status}: {times.sentence}", file=sys.stderr)
