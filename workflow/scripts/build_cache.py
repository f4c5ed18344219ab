"""Decodes a dataset once into its cache."""

from gpufeed import orphan

if __name__ == "__main__":
    orphan.end_with_snakemake()

from pathlib import Path

from gpufeed import leases
from gpufeed.cache import build_or_fall_back
from gpufeed.data.manifest import Manifest
from gpufeed.log import job_log
from gpufeed.registry import takes_gpu

if __name__ == "__main__":  # worker processes may import this file again
    with job_log(snakemake.log[0]) as log:  # noqa: F821
        job = snakemake  # noqa: F821
        leases.take(takes_gpu(job.params.decoder), job.params.device or "auto")
        if job.input.get("extension"):
            from gpufeed import ops  # with torch

            ops.load(job.input.extension)
        manifest = Manifest.read(job.input.manifest)
        path, threads = Path(job.output.cache), job.threads
        if strips := job.input.get("strips"):
            from gpufeed.devices import resolve_device  # with torch, which most decoders need not wait for
            from gpufeed.strips.to_cache import build_from_strips

            info = build_from_strips(manifest, strips, path, resolve_device(job.params.device), threads)
        else:
            info = build_or_fall_back(manifest, job.params.decoder, path, threads)
        log.info(
            "%d images %s by %s, sha256 %s", info.count, info.shape[1:], info.decoder_version, info.sha256
        )
