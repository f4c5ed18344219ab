"""Measures the ceilings of one cell: end to end and compute only by turns, input only, and its stages."""

from gpufeed import orphan

if __name__ == "__main__":
    orphan.end_with_snakemake()

import sys

from gpufeed import attempts, leases
from gpufeed.ceilings import verdict
from gpufeed.ceilings.measure import measure_ceilings
from gpufeed.ceilings.record import write
from gpufeed.compose import planned_cell
from gpufeed.log import job_log
from gpufeed.node import node_name
from gpufeed.parts import Stores

if __name__ == "__main__":  # where workers are spawned and not forked, they import this file again
    with job_log(snakemake.log[0]):  # noqa: F821
        job = snakemake  # noqa: F821
        cell = planned_cell(job)
        leases.take(cell["devices"], cell["device"], job.threads, job.resources.get("shares", 1))
        found = measure_ceilings(
            cell,
            job.input.manifest,
            Stores.of(job.input),
            job.params.settings,
            planned_on=node_name(),
            attempt=job.params.attempt,
            threads=job.threads,
            gate=job.input.get("gate") or None,
        )
        attempts.ended(job.output.ceilings, found["attempt"])
        write(found, job.output.ceilings)
        said = found["sentence"] or verdict.of(found).sentence
        print(f"ceilings of {job.wildcards.cell}, {found['status']}: {said}", file=sys.stderr)
