"""Holds a loader against the reference and writes the verdict, which is final if it passed."""

from gpufeed import orphan

if __name__ == "__main__":
    alive = orphan.snakemake_runs()

import sys
from pathlib import Path

from gpufeed import attempts, leases
from gpufeed.data.unpacked import bring
from gpufeed.gate.task import Task
from gpufeed.gate.watch import watched
from gpufeed.log import job_log
from gpufeed.node import node_name

if __name__ == "__main__":  # where workers are spawned and not forked, they import this file again
    with job_log(snakemake.log[0]):  # noqa: F821
        job = snakemake  # noqa: F821
        task = Task(
            dataset=job.wildcards.dataset,
            loader=job.wildcards.loader,
            settings=job.params.settings,
            manifest=job.input.manifest,
            reference=job.input.reference,
            cache=job.input.get("cache") or None,
            strips=job.input.get("strips") or None,
            shards=job.input.get("shards") or None,
            beton=job.input.get("beton") or None,
            extension=job.input.get("extension") or None,
            device=job.params.device,
            threads=job.config["cores_per_cell"],  # as a cell's loader has, though the job has reserved less
        )
        # here, where no loader is taken for stuck meanwhile
        if task.cache is None and task.shards is None and task.beton is None:
            bring(Path(task.manifest).parent)
        # no thread may run when the gate forks: what ends this process with Snakemake is asked while it waits
        leases.take(1, job.params.device, job.threads, job.resources.get("shares", 1), alive)
        verdict = watched(task, node_name(), job.params.attempt, begun=lambda: orphan.end_unless(alive))
        attempts.ended(job.output.verdict, verdict.attempt)
        verdict.write(job.output.verdict)
        if verdict.sentence:
            print(
                f"gate {task.loader} on {task.dataset} {verdict.status}: {verdict.sentence}", file=sys.stderr
            )
