"""Trains one cell once and keeps its model; writes the weights, then what is known of them."""

from gpufeed import orphan

if __name__ == "__main__":
    orphan.end_with_snakemake()

import sys
from pathlib import Path

from gpufeed import attempts, leases
from gpufeed.compose import planned_cell
from gpufeed.log import job_log
from gpufeed.node import node_name
from gpufeed.parts import Stores
from gpufeed.resume import over, resumable
from gpufeed.trained.model_file import save
from gpufeed.trained.record import MODEL
from gpufeed.trained.train import train_model

if __name__ == "__main__":  # where workers are spawned and not forked, they import this file again
    with job_log(snakemake.log[0]):  # noqa: F821
        job = snakemake  # noqa: F821
        cell = planned_cell(job)
        leases.take(cell["devices"], cell["device"], job.threads, job.resources.get("shares", 1))
        folder = Path(job.output.model).parent
        with resumable(folder, job.wildcards.cell, job.params.code) as checkpoints:
            found = train_model(
                cell,
                job.input.manifest,
                Stores.of(job.input),
                job.input.get("gate") or None,
                planned_on=node_name(),
                attempt=job.params.attempt,
                threads=job.threads,
                checkpoints=checkpoints,
                scratch=Path(job.config["results"]) / "scratch",
            )
            save(found.about, found.model, job.output.model)
            attempts.ended(job.output.about, found.about["attempt"])
            MODEL.write(found.about, job.output.about)
        over(checkpoints, found.about["status"])
        if found.about["sentence"]:
            print(
                f"model of {job.wildcards.cell} {found.about['status']}: {found.about['sentence']}",
                file=sys.stderr,
            )
