"""Decodes a dataset once into its cache."""

from pathlib import Path

from gpufeed.cache import build_or_fall_back
from gpufeed.data.manifest import Manifest
from gpufeed.log import job_log

if __name__ == "__main__":  # worker processes may import this file again
    with job_log(snakemake.log[0]) as log:  # noqa: F821
        manifest = Manifest.read(snakemake.input.manifest)  # noqa: F821
        info = build_or_fall_back(
            manifest,
            snakemake.params.decoder,  # noqa: F821
            Path(snakemake.output.cache),  # noqa: F821
            snakemake.threads,  # noqa: F821
        )
        log.info(
            "%d images %s by %s, sha256 %s", info.count, info.shape[1:], info.decoder_version, info.sha256
        )
