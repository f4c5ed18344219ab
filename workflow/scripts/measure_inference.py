"""Measures a kept model by each backend: accuracy, latency, throughput."""

from gpufeed import orphan

if __name__ == "__main__":
    orphan.end_with_snakemake()

import sys

from gpufeed import attempts, leases
from gpufeed.compose import planned_cell
from gpufeed.inference.files import find, troubles
from gpufeed.inference.measure import measure_inference
from gpufeed.inference.record import write
from gpufeed.log import job_log
from gpufeed.node import node_name
from gpufeed.parts import Stores

if __name__ == "__main__":  # where workers are spawned and not forked, they import this file again
    with job_log(snakemake.log[0]):  # noqa: F821
        job = snakemake  # noqa: F821
        cell = planned_cell(job)
        leases.take(1, cell["device"], job.threads, job.resources.get("shares", 1))
        found = measure_inference(
            cell,
            job.input.model,
            find(
                {
                    job.input.exported: job.input.exported_files,
                    job.input.quantised: job.input.quantised_files,
                }
            ),
            job.input.manifest,
            Stores.of(job.input),
            job.params.settings,
            planned_on=node_name(),
            attempt=job.params.attempt,
            threads=job.threads,
        )
        attempts.ended(job.output.inference, found["attempt"])
        write(found, job.output.inference)
        for trouble in troubles(found):
            print(f"inference of {job.wildcards.cell}: {trouble}", file=sys.stderr)
