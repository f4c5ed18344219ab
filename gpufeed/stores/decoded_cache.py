"""Build the cache, a dataset decoded once to one array; cache_format.py reads and verifies it."""

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.file_writes import sha256_of, whole
from gpufeed.core.registry import load, takes_gpu
from gpufeed.datasets import quarantine
from gpufeed.datasets.manifest import Manifest
from gpufeed.decoders.base import Tolerance
from gpufeed.stores.base import build_once, manifest_digest
from gpufeed.stores.cache_fill import (
    allocate,
    decoder,
    fill_here,
    fill_in_processes,
    fill_made,
    fill_scaled,
    write_rows,
)
from gpufeed.stores.cache_format import CacheInfo, open_cache
from gpufeed.stores.scaled_cache import ScaledImages, short_side_of

FALLBACKS = ("simplejpeg", "pillow")  # for the decoder that cannot run here, the fastest first

log = logging.getLogger("gpufeed")


def build_or_fall_back(
    manifest: Manifest, decoder_name: str, path: str | Path, workers: int = 1
) -> CacheInfo:
    """Build the cache by the decoder, or by the first of FALLBACKS that this node can run.

    The log and the sidecar (asked_for, because) record a fallback. Raises as `build` does.
    """
    name, because = able(decoder_name, workers, manifest.info.resize)
    return build(manifest, name, path, workers, decoder_name if because else None, because)


def build_named(manifest: Manifest, path: str | Path, workers: int = 1) -> CacheInfo:
    """Build the cache that the file's name asks for: by the decoder of that name, or of one short side."""
    if short_side := short_side_of(Path(path)):
        return build_scaled(manifest, path, short_side, workers)
    return build_or_fall_back(manifest, Path(path).stem, path, workers)


def build_scaled(manifest: Manifest, path: str | Path, short_side: int, workers: int) -> CacheInfo:
    """Build the cache of images of one short side, whole or not at all; raise as `build` does.

    The first of FALLBACKS that this node can run decodes them on the CPU.
    """
    name = next(filter(runs, FALLBACKS))
    ours = decoder(name, 1)

    def fill(target: Path) -> list[dict[str, str]]:
        check_share(list(fill_scaled(manifest, name, target, short_side, workers)), len(manifest), None)
        return []

    source = {"decoder": name, "decoder_version": ours.version(), "tolerance": ours.tolerance}
    return store(manifest, Path(path), fill, source, True, (ScaledImages.of(manifest, short_side).total,))


def able(decoder_name: str, workers: int, resize: tuple[int, int] | None = None) -> tuple[str, str | None]:
    """Return the decoder to use on this node: the given one and None, or a fallback and the reason."""
    try:
        decoder(decoder_name, threads_of(decoder_name, workers), resize)
    except Skip as skip:
        instead = next(name for name in FALLBACKS if name != decoder_name and runs(name))
        log.info("%s %s builds the cache instead.", skip, instead)
        return instead, str(skip)
    return decoder_name, None


def runs(decoder_name: str) -> bool:
    """Return whether this node can run a decoder."""
    try:
        decoder(decoder_name, 1)
    except Skip:
        return False
    return True


def threads_of(decoder_name: str, workers: int) -> int:
    """Return the threads of one decoder: 1 if several processes each have a decoder."""
    return 1 if load("decoder", decoder_name).parallel == "processes" else workers


def build(
    manifest: Manifest,
    decoder_name: str,
    path: str | Path,
    workers: int = 1,
    asked_for: str | None = None,
    because: str | None = None,
    durable: bool = True,
    max_quarantined_share: float | None = None,
) -> CacheInfo:
    """Decode the whole dataset into `path`, whole or not at all, and write its sidecar.

    workers: cores to use, by as many processes or by the decoder's own threads (Decoder.parallel); 1
    decodes in this process. asked_for, because: see CacheInfo. durable: wait, once at the end, until the
    disk has the pixels. max_quarantined_share: share of the images that may be undecodable; the sidecar
    lists them. None is for a prepared dataset, where each is an error. If another process is building the
    same cache, its cache is used.

    Raises GpufeedError for images of several sizes, images that cannot be decoded (all are listed in the
    log), a full disk, a dead worker and a decoder that this node lacks.
    """
    try:
        ours = decoder(decoder_name, threads_of(decoder_name, workers), manifest.info.resize)
    except Skip as skip:
        raise GpufeedError(
            str(skip),
            f"a node that can run decoder {decoder_name}",
            "build on such a node, or use another decoder",
        ) from skip

    def fill(target: Path) -> list[dict[str, str]]:
        if manifest.made:
            failures = fill_made(manifest, target)
        elif ours.parallel == "processes":
            failures = fill_in_processes(manifest, decoder_name, target, workers)
        else:
            failures = fill_here(manifest, ours, target)
        undecodable = list(failures)
        check_share(undecodable, len(manifest), max_quarantined_share)
        return undecodable

    source = {"decoder": decoder_name, "decoder_version": ours.version(), "tolerance": ours.tolerance}
    source |= {"asked_for": asked_for, "because": because}
    return store(manifest, Path(path), fill, source, durable)


def build_from_rows(
    manifest: Manifest,
    batches: Iterable[tuple[Sequence[int], Any]],
    path: str | Path,
    version: str,
    tolerance: Tolerance,
    durable: bool = True,
) -> CacheInfo:
    """Build the cache of decoder `strips` from images that are decoded elsewhere.

    batches: (ids, images), in any order, each sample once; images is a uint8 (n, H, W, 3) array, or
    tensor on any device, whose row i is sample ids[i]. tolerance: of the images against Pillow's. durable: as
    `build`. Raises GpufeedError if a sample is missing.
    """

    def fill(target: Path) -> list[dict[str, str]]:
        write_rows(target, batches)
        return []

    source = {"decoder": "strips", "decoder_version": version, "tolerance": tolerance}
    return store(manifest, Path(path), fill, source, durable)


def store(
    manifest: Manifest,
    path: Path,
    fill: Callable[[Path], list[dict[str, str]]],
    source: dict[str, Any],
    durable: bool,
    shape: tuple[int, ...] | None = None,
) -> CacheInfo:
    """Have `fill` write the pixels into a partial file; move that to `path` and write the sidecar.

    `fill` returns the images that it could not decode, for CacheInfo.quarantined. source: the fields of
    CacheInfo that say where the pixels come from. shape: of the array; None if all images are of one size.
    Of several processes that want the cache at once, one builds it and the others use it.
    """
    shape = shape or (len(manifest), *manifest.image_size(), 3)

    def make() -> CacheInfo:
        with whole(path, shared=True, durable=durable) as partial:
            allocate(partial, shape)
            quarantined = fill(partial)
            return CacheInfo(
                **source,
                manifest_sha256=manifest_digest(manifest),
                count=len(manifest),
                shape=shape,
                sha256=sha256_of(partial),
                quarantined=quarantined,
            )

    def finished() -> CacheInfo:
        open_cache(path, manifest)
        return CacheInfo.read(path)

    return build_once(path, make, finished, {"decoder": source["decoder"]})


def check_share(quarantined: list[dict[str, str]], count: int, max_share: float | None) -> None:
    """Raise GpufeedError if more than this share of the images cannot be decoded, and log all of them.

    count: all images. max_share: None is for a prepared dataset, where none may be left out.
    """
    if len(quarantined) <= (max_share or 0) * count:
        return
    for image in quarantined:
        log.error("cannot be decoded: %s: %s", image["path"], image["reason"])
    repair = "repair these files or move them away"
    if max_share is not None:
        remedy = f"{repair}, or raise max_quarantined_share to leave them out"
        raise quarantine.too_many(quarantined, count, max_share, remedy)
    raise GpufeedError(
        quarantine.undecodable(quarantined, count),
        "images that can be decoded",
        f"{repair}; if gpufeed prepared the dataset, prepare it again: snakemake --forcerun prepare_dataset",
    )


def for_job(job: Any) -> None:
    """Do the work of rule build_cache, a gpufeed.job.Job, with a decoder that reads files."""
    job.take_gpus(takes_gpu(job.params.decoder), job.params.device or "auto", share=False)
    job.load_extension()
    log_built(build_or_fall_back(job.manifest, job.params.decoder, job.output.cache, job.threads))


def log_built(info: CacheInfo) -> None:
    """Log what a cache holds."""
    said = "%d images %s by %s, sha256 %s"
    log.info(said, info.count, info.shape[1:], info.decoder_version, info.sha256)
