"""Exports a kept model to a program of torch.export and to ONNX, and lists what it made."""

from gpufeed import orphan

if __name__ == "__main__":
    orphan.end_with_snakemake()

import sys

from gpufeed import attempts
from gpufeed.compose import planned_cell
from gpufeed.inference.export import export_model
from gpufeed.inference.files import EXPORTED, troubles
from gpufeed.log import job_log
from gpufeed.node import node_name

if __name__ == "__main__":
    with job_log(snakemake.log[0]):  # noqa: F821
        job = snakemake  # noqa: F821
        found = export_model(
            planned_cell(job),
            job.input.model,
            job.output.files,
            planned_on=node_name(),
            attempt=job.params.attempt,
            threads=job.threads,
        )
        attempts.ended(job.output.exported, found["attempt"])
        EXPORTED.write(found, job.output.exported)
        for trouble in troubles(found):
            print(f"export of {job.wildcards.cell}: {trouble}", file=sys.stderr)
