"""Asks a kept model about every image of the evaluation split."""

from gpufeed import orphan

if __name__ == "__main__":
    orphan.end_with_snakemake()

import sys

from gpufeed import attempts, leases
from gpufeed.compose import planned_cell
from gpufeed.log import job_log
from gpufeed.node import node_name
from gpufeed.parts import Stores
from gpufeed.trained.evaluation import evaluate_model
from gpufeed.trained.record import EVALUATION

if __name__ == "__main__":  # where workers are spawned and not forked, they import this file again
    with job_log(snakemake.log[0]):  # noqa: F821
        job = snakemake  # noqa: F821
        cell = planned_cell(job)
        leases.take(1, cell["device"], job.threads, job.resources.get("shares", 1))
        found = evaluate_model(
            cell,
            job.input.model,
            job.input.manifest,
            Stores.of(job.input),
            planned_on=node_name(),
            attempt=job.params.attempt,
            threads=job.threads,
        )
        attempts.ended(job.output.evaluation, found["attempt"])
        EVALUATION.write(found, job.output.evaluation)
        if found["sentence"]:
            print(
                f"evaluation of {job.wildcards.cell} {found['status']}: {found['sentence']}", file=sys.stderr
            )
