"""Decodes a dataset once into its cache."""

from pathlib import Path

from gpufeed.cache import build_or_fall_back
from gpufeed.data.manifest import Manifest
from gpufeed.log import job_log

if __name__ == "__main__":  # worker processes may import this file again
    with job_log(snakemake.log[0]) as log:  # noqa: F821
        manifest = Manifest.read(snakemake.input.manifest)  # noqa: F821
        path, threads = Path(snakemake.output.cache), snakemake.threads  # noqa: F821
        if strips := snakemake.input.get("strips"):  # noqa: F821
            from gpufeed.devices import resolve_device  # with torch, which most decoders need not wait for
            from gpufeed.strips.to_cache import build_from_strips

            info = build_from_strips(manifest, strips, path, resolve_device(snakemake.params.device), threads)  # noqa: F821
        else:
            info = build_or_fall_back(manifest, snakemake.params.decoder, path, threads)  # noqa: F821
        log.info(
            "%d images %s by %s, sha256 %s", info.count, info.shape[1:], info.decoder_version, info.sha256
        )
