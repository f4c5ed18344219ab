"""Build a cache from a strip set: strips are decoded on the device, and their rows written in that order."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpufeed.core.errors import GpufeedError
from gpufeed.core.registry import takes_gpu
from gpufeed.datasets.manifest import Manifest
from gpufeed.stores.cache_format import CacheInfo
from gpufeed.stores.decoded_cache import build_from_rows, log_built
from gpufeed.stores.strips_reader import StripReader
from gpufeed.system.devices import resolve_device

CALL_BYTES = 256 * 2**20  # of decoded pixels in one call


def build_from_strips(
    manifest: Manifest,
    strips: str | Path,
    path: str | Path,
    device: torch.device,
    threads: int = 1,
    durable: bool = True,
) -> CacheInfo:
    """Build the cache at `path` from the strip set at `strips`, whole or not at all.

    durable: as in `gpufeed.stores.decoded_cache.build`. Raises GpufeedError if the strip set is of another
    manifest or lacks one of its splits, and for a dataset whose images are to be resized.
    """
    if manifest.info.resize:
        height, width = manifest.info.resize
        raise GpufeedError(
            f"a cache by strips of {manifest.info.dataset}, whose images are resized to {height} x {width}",
            "a dataset without `resize`, since strips yield images in the size of their files",
            "set another cache_decoder than strips",
        )
    reader = StripReader(manifest, strips, device, threads)
    try:
        by = reader.backend
        return build_from_rows(manifest, calls(reader), path, by.version(), by.tolerance, durable)
    finally:
        reader.close()


def calls(reader: StripReader) -> Iterator[tuple[np.ndarray, torch.Tensor]]:
    """Yield (ids, images uint8 (n, H, W, 3)) of every sample of the strip set, some units a call."""
    height, width = reader.size
    units = max(1, CALL_BYTES // (height * width * 3 * reader.strips.info.images_per_strip))
    for split in reader.strips.info.splits:
        yield from reader.batches(split, units)


def for_job(job: Any) -> None:
    """Do the work of rule build_cache, a gpufeed.job.Job, with strips."""
    job.take_gpus(takes_gpu(job.params.decoder), job.params.device or "auto", share=False)
    job.load_extension()
    device = resolve_device(job.params.device)
    log_built(build_from_strips(job.manifest, job.input.strips, job.output.cache, device, job.threads))
