"""Writes a dataset into a file of FFCV's format."""

from gpufeed import orphan

if __name__ == "__main__":
    orphan.end_with_snakemake()

from pathlib import Path

from gpufeed.beton.build import build
from gpufeed.data.manifest import Manifest
from gpufeed.log import job_log

if __name__ == "__main__":  # worker processes may import this file again
    with job_log(snakemake.log[0]) as log:  # noqa: F821
        manifest = Manifest.read(snakemake.input.manifest)  # noqa: F821
        info = build(manifest, Path(snakemake.output.beton), workers=snakemake.threads)  # noqa: F821
        log.info("%d images, %d of them as their JPEG files, %d bytes", info.count, info.jpegs, info.size)
