"""Makes the INT8 file of an exported model, calibrated on training images, and lists it."""

from gpufeed import orphan

if __name__ == "__main__":
    orphan.end_with_snakemake()

import sys

from gpufeed import attempts, leases
from gpufeed.compose import planned_cell
from gpufeed.inference.files import EXPORTED, find, troubles
from gpufeed.inference.quantise import quantise_model
from gpufeed.log import job_log
from gpufeed.node import node_name
from gpufeed.parts import Stores

if __name__ == "__main__":  # where workers are spawned and not forked, they import this file again
    with job_log(snakemake.log[0]):  # noqa: F821
        job = snakemake  # noqa: F821
        cell = planned_cell(job)
        leases.take(1, cell["device"], job.threads, job.resources.get("shares", 1))
        found = quantise_model(
            cell,
            find({job.input.exported: job.input.exported_files}),
            job.input.manifest,
            Stores.of(job.input),
            job.params.calibration,
            job.output.files,
            planned_on=node_name(),
            attempt=job.params.attempt,
            threads=job.threads,
        )
        attempts.ended(job.output.quantised, found["attempt"])
        EXPORTED.write(found, job.output.quantised)
        for trouble in troubles(found):
            print(f"INT8 file of {job.wildcards.cell}: {trouble}", file=sys.stderr)
