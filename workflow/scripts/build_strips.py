"""Joins a dataset's JPEG files into strips."""

from gpufeed import orphan

if __name__ == "__main__":
    orphan.end_with_snakemake()

from pathlib import Path

from gpufeed.data.manifest import Manifest
from gpufeed.log import job_log
from gpufeed.strips.build import build

if __name__ == "__main__":  # worker processes may import this file again
    with job_log(snakemake.log[0]) as log:  # noqa: F821
        manifest = Manifest.read(snakemake.input.manifest)  # noqa: F821
        info = build(manifest, Path(snakemake.output.strips), workers=snakemake.threads)  # noqa: F821
        log.info("%d of %d files in %d strips, sha256 %s", info.joined, info.count, info.strips, info.sha256)
        for reason, ids in info.left_over.items():
            log.warning("left over: %d, %s", len(ids), reason)
