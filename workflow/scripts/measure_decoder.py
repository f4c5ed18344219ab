"""Measures one decoder over all points of a sweep."""

if __name__ == "__main__":
    from gpufeed import orphan

    orphan.end_with_snakemake()

    # here, since every decoding process imports this file again, and torch would take each of them 3 s
    import sys

    from gpufeed import attempts, leases
    from gpufeed.log import job_log
    from gpufeed.node import node_name
    from gpufeed.sweep.measure import measure_decoder
    from gpufeed.sweep.record import write

    with job_log(snakemake.log[0]):  # noqa: F821
        job = snakemake  # noqa: F821
        leases.take(1, job.params.device)
        if job.input.get("extension"):
            from gpufeed import ops  # with torch

            ops.load(job.input.extension)
        datasets = job.params.settings["datasets"]
        strips = job.input.get("strips") or []
        sweep = measure_decoder(
            job.wildcards.experiment,
            job.wildcards.decoder,
            job.params.settings,
            {name: job.input[name] for name in datasets},
            planned_on=node_name(),
            device=job.params.device,
            strips=dict(zip(datasets, [strips] if isinstance(strips, str) else strips, strict=False)),
            attempt=job.params.attempt,
            threads=job.threads,
        )
        attempts.ended(job.output[0], sweep["attempt"])
        write(sweep, job.output[0])
        if sweep["sentence"]:
            print(f"{sweep['decoder']} {sweep['status']}: {sweep['sentence']}", file=sys.stderr)
