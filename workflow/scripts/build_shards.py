"""Writes a dataset's files into tar shards."""

from gpufeed import orphan

if __name__ == "__main__":
    orphan.end_with_snakemake()

from pathlib import Path

from gpufeed.data.manifest import Manifest
from gpufeed.log import job_log
from gpufeed.shards.build import build

if __name__ == "__main__":  # worker processes may import this file again
    with job_log(snakemake.log[0]) as log:  # noqa: F821
        manifest = Manifest.read(snakemake.input.manifest)  # noqa: F821
        info = build(manifest, Path(snakemake.output.index), workers=snakemake.threads)  # noqa: F821
        size = sum(shard.size for shard in info.shards)
        log.info("%d files in %d shards, %d bytes", len(manifest), len(info.shards), size)
