"""Compiles the extension; on a node without a compiler, writes down why not."""

from pathlib import Path

from gpufeed.log import job_log
from gpufeed.ops.build import build_or_say

if __name__ == "__main__":
    with job_log(snakemake.log[0]) as log:  # noqa: F821
        built = build_or_say(Path(snakemake.output.library).parent, jobs=snakemake.threads)  # noqa: F821
        log.info("%s: %s", built.library, built.about)
        if built.about.sentence:
            log.warning("%s", built.about.sentence)
