"""Runs one repeat of one cell; writes its steps, then its record, which thereby vouches for both."""

import os
import sys

import torch

from gpufeed.log import job_log
from gpufeed.measure import measure
from gpufeed.node import node_name

with job_log(snakemake.log[0]):  # noqa: F821
    job = snakemake  # noqa: F821
    torch.set_num_threads(max(1, job.threads))
    record, steps = measure(
        job.params.cell,
        job.params.repeat,
        job.input.manifest,
        job.input.get("cache") or None,
        planned_on=job.params.get("planned_on") or node_name(),
        attempt=job.params.get("attempt") or 1,
    )
    partial = f"{job.output.steps}.partial"
    steps.to_parquet(partial, index=False)
    os.replace(partial, job.output.steps)
    record.write(job.output.record)
    if record.sentence:
        print(f"{record.cell_id} repeat {record.repeat} {record.status}: {record.sentence}", file=sys.stderr)
