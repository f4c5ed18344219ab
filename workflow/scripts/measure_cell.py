"""Runs one repeat of one cell; writes its steps, then its record, which thereby vouches for both."""

import time

BEGAN_S = time.time()  # before the imports, which the record tells from the start of the process

if __name__ == "__main__":  # where workers are spawned and not forked, they import this file again
    from gpufeed import orphan

    orphan.end_with_snakemake()

    import sys
    from contextlib import nullcontext
    from pathlib import Path

    from gpufeed import attempts, leases
    from gpufeed.compose import planned_cell
    from gpufeed.data.disk import whole
    from gpufeed.log import job_log
    from gpufeed.measure import measure
    from gpufeed.node import node_name
    from gpufeed.resume import over, resumable
    from gpufeed.side_by_side import block_of, printed, words
    from gpufeed.telemetry import wanted
    from gpufeed.tracking.measured import track

    with job_log(snakemake.log[0]):  # noqa: F821
        job = snakemake  # noqa: F821
        cell = planned_cell(job)
        leases.take(cell["devices"], cell["device"], job.threads, job.resources.get("shares", 1))
        results, name = Path(job.config["results"]), job.wildcards
        place = (name.experiment, name.cell, name.repeat)
        kept = results.joinpath("checkpoints", *place)
        # from the config and not from params: neither this nor telemetry changes what is timed
        experiment = job.config["experiments"][name.experiment]
        goes_on, block = experiment.get("resume", False), block_of(job.config, name.experiment, cell)
        shown = printed(f"{words(block)}, repeat {job.params.repeat + 1}") if block else nullcontext()
        with resumable(kept, *place, job.params.code) if goes_on else nullcontext() as checkpoints, shown:
            record, steps = measure(
                cell,
                job.params.repeat,
                job.input.manifest,
                job.input.get("cache") or None,
                strips=job.input.get("strips") or None,
                shards=job.input.get("shards") or None,
                beton=job.input.get("beton") or None,
                gate=job.input.get("gate") or None,
                extension=job.input.get("extension") or None,
                planned_on=node_name(),
                attempt=job.params.attempt,
                threads=job.threads,
                least_s=job.params.least_s,
                scratch=results / "scratch",
                telemetry=wanted(job.config["telemetry"]),
                began_s=BEGAN_S,
                checkpoints=checkpoints,
            )
            with whole(job.output.steps) as partial:
                steps.to_parquet(partial, index=False)
            attempts.ended(job.output.record, record.attempt)
            record.write(job.output.record)
        if checkpoints is not None:
            over(checkpoints, record.status)
        # from the config and not from params: what is told of a repeat does not change it
        track(record, job.config["tracking"], results, name.repeat)
        if record.sentence:
            print(
                f"{record.cell_id} repeat {record.repeat} {record.status}: {record.sentence}", file=sys.stderr
            )
