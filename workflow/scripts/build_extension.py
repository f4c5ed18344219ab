"""Compiles the extension; what the node lacks for it is written down."""

from gpufeed import orphan

if __name__ == "__main__":
    orphan.end_with_snakemake()

from pathlib import Path

from gpufeed import attempts
from gpufeed.log import job_log
from gpufeed.node import node_name
from gpufeed.ops.build import build_or_say

if __name__ == "__main__":
    with job_log(snakemake.log[0]) as log:  # noqa: F821
        job = snakemake  # noqa: F821
        built = build_or_say(
            Path(job.output.library).parent,
            cuda=False if job.params.cpu_alone else None,
            jobs=job.threads,
            planned_on=node_name(),
            attempt=job.params.attempt,
        )
        attempts.ended(job.output.about, built.about.attempt)
        log.info("%s: %s", built.library, built.about)
        if built.about.sentence:
            log.warning("%s", built.about.sentence)
