"""How long a decoder takes to build caches of 1,000 to 200,000 images, and how much device memory it takes.

Each decoder has its own process, so that memory is not attributed to another. A round is a whole build by
`gpufeed.stores.decoded_cache.build` with a new decoder. It excludes the start of Python, imports, the CUDA
context, and the first read of the files, which are in the page cache. It also excludes the disk's time to
write the array, for which a real build waits once at its end.
"""

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from gpufeed.core.document import Document, now
from gpufeed.core.errors import Skip, one_line
from gpufeed.core.registry import DECODERS, takes_gpu
from gpufeed.datasets.manifest import Manifest
from gpufeed.stores.cache_fill import decoder
from gpufeed.stores.cache_format import CacheInfo
from gpufeed.stores.decoded_cache import build, threads_of
from gpufeed.system.build_once import scratch_folder
from gpufeed.system.host_memory import keep_freed_blocks
from gpufeed.system.page_cache import read_in

SCHEMA_VERSION = 1
STRIPS = "strips"  # builds from strips, which are made first and timed separately
HEADER_BYTES = 128  # of a .npy file
DOCUMENT = Document("build", "record of build times")
LARGE = 20_000  # images; larger sets are built twice, others three times
LOOK_S = 0.002  # interval of reading the device's free memory: a decoder's call takes longer

log = logging.getLogger("gpufeed")


def measure_build(
    manifest_path: str | Path,
    experiment: str,
    decoder_name: str,
    cores_asked: str,
    counts: list[int],
    folder: str | Path,
    planned_on: str,
    attempt: int = 1,
    threads: int = 1,
) -> dict[str, Any]:
    """Return the timed builds (gpufeed/core/schemas/build.schema.yaml) of one decoder.

    If the node lacks something, the status is `skipped`; an error gives `failed`. folder: for the caches,
    which are built one at a time and removed. They are in a folder of their own, where a run also removes
    what a killed one left. threads: cores of the job, of which cores_asked "one" uses one.
    """
    keep_freed_blocks()
    started_at = now()
    manifest = Manifest.read(manifest_path)
    try:
        with scratch_folder(Path(folder) / f"{experiment}-{decoder_name}-{cores_asked}") as place:
            found = timed(manifest, decoder_name, threads if cores_asked == "all" else 1, counts, place)
    except Skip as skip:
        found = {"status": "skipped", "sentence": str(skip)}
        log.info("skipped: %s", skip)
    except Exception as error:
        found = {"status": "failed", "sentence": one_line(error)}
        log.exception("the build failed")
    # here, since decoding processes start faster from a process without torch, as in rule build_cache
    import torch

    from gpufeed.system.environment import environment

    device = f"cuda:{torch.cuda.current_device()}" if on_device(decoder_name) else "cpu"
    return {
        "schema_version": SCHEMA_VERSION,
        "experiment": experiment,
        "dataset": manifest.info.dataset,
        "decoder": decoder_name,
        "cores_asked": cores_asked,
        "attempt": attempt,
        "planned_on": planned_on,
        "started_at": started_at,
        "finished_at": now(),
        "environment": environment(torch.device(device)),
        "status": "done",
        "sentence": None,
        **dict.fromkeys(("decoder_version", "cores", "image", "real_files")),
        "builds": [],
        **found,
    }


def timed(manifest: Manifest, decoder_name: str, cores: int, counts: list[int], place: Path) -> dict:
    """Return the fields of a decoder's builds; raise Skip if it cannot run."""
    before = used_mib() if on_device(decoder_name) else None
    if decoder_name != STRIPS:
        decoder(decoder_name, threads_of(decoder_name, cores))  # raises Skip before anything is prepared
    builds, version = [], None
    for count in counts:
        subset = repeats(manifest, count)
        read_in(dict.fromkeys(subset.paths()))
        with (
            prepared(subset, decoder_name, cores, place) as (build_once, strips_s),
            peak_mib(before) as peak,
        ):
            rounds = [timed_round(build_once) for _ in range(rounds_of(count))]
        infos = [info for _, info in rounds]
        version = infos[0].decoder_version
        builds.append(
            {
                "count": count,
                "files": min(count, len(manifest)),
                "rounds_s": [seconds for seconds, _ in rounds],
                "strips_s": strips_s,
                "images_per_s": count / median(seconds for seconds, _ in rounds),
                "bytes_written": int(np.prod(infos[0].shape)) + HEADER_BYTES,
                "gpu_buffers_mib": peak.mib,
            }
        )
        log.info("%d images: %s s", count, ", ".join(f"{seconds:.2f}" for seconds, _ in rounds))
    return {
        "decoder_version": version,
        "cores": cores,
        "image": manifest.image_size(),
        "real_files": len(manifest),
        "builds": builds,
    }


def rounds_of(count: int) -> int:
    """Return how often a set of this size is built."""
    return 3 if count <= LARGE else 2


def repeats(manifest: Manifest, count: int) -> Manifest:
    """Return a dataset of `count` samples: files in a fixed random order, repeated if needed."""
    order = np.random.default_rng(0).permutation(len(manifest))
    table = manifest.table.iloc[np.resize(order, count)].reset_index(drop=True)
    return Manifest(manifest.root, manifest.info, table)


@contextmanager
def prepared(
    manifest: Manifest, decoder_name: str, cores: int, place: Path
) -> Iterator[tuple[Callable[[], CacheInfo], float | None]]:
    """Yield a function that builds the cache once in `place`, and the seconds to make its strips.

    The seconds are None for a decoder that reads the files.
    """
    shutil.rmtree(place, ignore_errors=True)  # of the previous set
    path = place / f"{decoder_name}.npy"
    if decoder_name != STRIPS:
        yield lambda: build(manifest, decoder_name, path, cores, durable=False), None
        return
    from gpufeed.stores.strips_build import build as build_strips
    from gpufeed.stores.strips_to_cache import build_from_strips
    from gpufeed.system.devices import resolve_device  # here: a CPU decoder's processes need no torch

    strips, device, start = place / "strips/strips.bin", resolve_device("auto"), time.perf_counter()
    build_strips(manifest, strips, workers=cores)
    strips_s = time.perf_counter() - start
    yield lambda: build_from_strips(manifest, strips, path, device, cores, durable=False), strips_s


def timed_round(build_once: Callable[[], CacheInfo]) -> tuple[float, CacheInfo]:
    """Return (seconds, sidecar) of one build with a new decoder."""
    decoder.cache_clear()
    start = time.perf_counter()
    info = build_once()
    return time.perf_counter() - start, info


def on_device(decoder_name: str) -> bool:
    """Return whether the decoder uses this node's GPU."""
    if decoder_name != STRIPS and DECODERS[decoder_name].device != "cuda":
        return False
    import torch

    return torch.cuda.is_available()


def used_mib() -> float:
    """Return the device memory in use by all processes, in MiB; create the CUDA context if needed."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**20


@dataclass
class Peak:
    """The most device memory in use beyond what was used before, in MiB; None if unknown."""

    mib: float | None = None


@contextmanager
def peak_mib(before: float | None) -> Iterator[Peak]:
    """Watch the device's memory in a thread during the block; before: in use at the start, or None.

    Memory is sampled, since decoding libraries have their own allocators.
    """
    peak = Peak()
    if before is None:
        yield peak
        return
    stop = threading.Event()
    peak.mib = 0.0

    def look() -> None:
        while True:
            peak.mib = max(peak.mib, used_mib() - before)
            if stop.wait(LOOK_S):
                return

    watch = threading.Thread(target=look, daemon=True)
    watch.start()
    try:
        yield peak
    finally:
        stop.set()
        watch.join()


def for_job(job: Any) -> None:
    """Run rule measure_build. job: a gpufeed.job.Job."""
    job.take_gpus(takes_gpu(job.wildcards.decoder), share=False)
    job.load_extension()
    names, manifest = job.wildcards, job.input.manifest
    where = (names.experiment, names.decoder, names.cores, job.params.counts)
    times = measure_build(manifest, *where, Path(manifest).parent / "build_times", **job.common_arguments)
    job.write_document(times, job.output[0], DOCUMENT.write, f"builds by {names.decoder}")
