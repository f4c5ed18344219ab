"""The sweep of decoders: images/s by image size, cores, batch size and page cache.

Decoders run alone, on the files of a dataset or on its strips.
"""

import logging
import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpufeed.benchmarks.result_envelope import node_document
from gpufeed.core.errors import GpufeedError, Skip, one_line
from gpufeed.core.plan_decoding import STRIP_SETS, Images, Point, core_counts, points
from gpufeed.core.record import DECODING, DECODING_VERSION
from gpufeed.core.registry import lacking, load
from gpufeed.datasets.manifest import Manifest
from gpufeed.decoders.parallel import Bulk, Files, open_bulk, torch_threads
from gpufeed.stores.strips_reader import StripReader
from gpufeed.stores.strips_store import open_strips
from gpufeed.system.cores import can_restrict, on_cores, physical_cores
from gpufeed.system.environment import cores_allowed
from gpufeed.system.host_memory import keep_freed_blocks
from gpufeed.system.page_cache import Refused, make_cold, read_in
from gpufeed.system.timing import synchronise

STRIPS_SPLIT = "train"
READ_BY_DALI = ("dali_cpu", "dali_gpu")
log = logging.getLogger("gpufeed")


class StripsBulk(Bulk):
    """All strips of a dataset, and its files that fit into no strip.

    These files count as fallen back, and so do strips that the backend refuses.
    """

    def __init__(self, cores: int, device: torch.device, backend: str | None = None):
        """Keep the backend, of gpufeed.stores.strip_backends; None: the best for the device."""
        super().__init__(device)
        self.cores, self.backend, self.reader = cores, backend, None

    def open(self, files: Files) -> None:
        if files.manifest is None or files.strips is None:
            raise GpufeedError("files without strips", "the manifest and strips.bin", "build the strips")
        self.close()
        self.files = files
        verify_strips_once(files.manifest, files.strips)
        self.manifest = Manifest.read(files.manifest)
        self.reader = StripReader(
            self.manifest, files.strips, self.device, self.cores, self.backend, verify=False
        )
        units = self.reader.units(STRIPS_SPLIT)
        self.left_over = [id for unit in units if unit.strip is None for id in unit.ids.tolist()]
        self.groups: list[list] = [[]]  # units of one call, at most files.batch_size images
        for unit in units:
            held = sum(len(other.ids) for other in self.groups[-1])
            if held and held + len(unit.ids) > files.batch_size:
                self.groups.append([])
            self.groups[-1].append(unit)

    def reads(self) -> list[str]:
        paths = self.manifest.paths()
        return [str(self.files.strips), *(str(paths[id]) for id in self.left_over)]

    def let_go(self) -> None:
        self.reader.let_go()

    def run(self, images: int) -> Iterator[torch.Tensor]:
        done = number = 0
        while done < images:
            group = self.groups[number % len(self.groups)]
            before = sum(self.reader.decode_counts.fell_back.values())
            _, batch = self.reader.read(group)
            self.fell_back += sum(self.reader.decode_counts.fell_back.values()) - before
            done, number = done + len(batch), number + 1
            yield batch

    def version(self) -> str:
        return self.reader.backend.version() if self.reader else "strips"

    def close(self) -> None:
        if self.reader is not None:
            self.reader.close()
            self.reader = None


@cache  # once per process, which is once per sweep; errors are not cached
def verify_strips_once(manifest: Path, strips: Path) -> None:
    """Raise GpufeedError unless every byte of the strips matches their sidecar."""
    open_strips(strips, Manifest.read(manifest), verify=True)


@dataclass(frozen=True)
class Stored:
    """A dataset as the sweep uses it: up to `images` training files in a fixed random order.

    sizes: (height, width) of each image file, int64 (files, 2).
    """

    manifest_path: Path
    strips: Path | None
    paths: list[str]
    sizes: np.ndarray
    images: Images
    bytes_per_pixel: float
    quality: int | None

    @property
    def size(self) -> tuple[int, int] | tuple[None, None]:
        """(height, width) if all images have one size, else (None, None)."""
        return tuple(self.sizes[0].tolist()) if (self.sizes == self.sizes[0]).all() else (None, None)

    def files(self, batch_size: int) -> Files:
        sizes = self.sizes if self.size[0] is None else None
        return Files(self.paths, *self.size, batch_size, self.manifest_path, self.strips, sizes)


def stored(manifest_path: Path, strips: Path | None, most: int) -> Stored:
    """Return the dataset of a manifest."""
    manifest = Manifest.read(manifest_path)
    everyone = manifest.ids("train")
    ids = np.random.default_rng(0).permutation(everyone)[:most]
    everything = manifest.paths()
    paths = [os.fspath(everything[id]) for id in ids]
    sizes = manifest.sizes()[ids]
    pixels = int(sizes.prod(axis=1).sum())
    return Stored(
        manifest_path,
        strips,
        paths,
        sizes,
        Images(pixels / len(paths), len(paths), len(everyone)),
        sum(os.path.getsize(path) for path in paths) / pixels,
        manifest.info.source.get("quality"),
    )


def measure_decoder(
    experiment: str,
    decoder: str,
    settings: dict,
    manifests: Mapping[str, str | Path],
    planned_on: str,
    device: str = "auto",
    strips: Mapping[str, str | Path] | None = None,
    attempt: int = 1,
    threads: int | None = None,
) -> dict:
    """Return the sweep of one decoder (gpufeed/core/schemas/sweep.schema.yaml).

    settings: from `gpufeed.core.plan_decoding.settings`; manifests, strips: dataset -> manifest.parquet,
    strips.bin. threads: cores of the job, the most of any point; None for all that the node allows. If the
    node lacks something, the status is `skipped`. A point that raises is failed, with a sentence, and the
    others continue. An interrupt or SIGTERM leaves nothing.
    """
    keep_freed_blocks()

    def work(on: torch.device) -> dict:
        sources = {
            name: stored(
                Path(path), Path(strips[name]) if strips and name in strips else None, settings["images"]
            )
            for name, path in manifests.items()
        }
        return run(decoder, settings, sources, on, min(threads or cores_allowed(), cores_allowed()))

    nothing = {
        "schema_version": DECODING_VERSION,
        **{"experiment": experiment, "decoder": decoder, "settings": settings},
        **dict.fromkeys(("device", "parallel", "version")),
        **{"left_out": [], "points": []},
    }
    return node_document("the sweep", device, work, nothing, planned_on, attempt)


def run(
    decoder: str, settings: Mapping, sources: Mapping[str, Stored], device: torch.device, allowed: int
) -> dict:
    """Return the fields of a finished sweep; raise Skip, or GpufeedError if every point failed.

    allowed: the most cores of a point.
    """
    parallel = how(decoder, device)
    counts, left_out = core_counts(
        settings["cores"], allowed, spreads=parallel != "device", restricts=can_restrict()
    )
    planned = points(
        settings, {name: source.images for name, source in sources.items()}, counts, decoder in STRIP_SETS
    )
    for source in sources.values():
        read_in(source.paths)
    memory, version, measured = DeviceMemory(device), None, []
    for cores, group in groupby(planned, key=lambda point: point.cores):
        with (
            on_cores(cores) as core_ids,
            torch_threads(cores),
            Bench(decoder, cores, core_ids, device) as bench,
        ):
            for point in group:
                measured.append(measure_point(bench, point, sources[point.dataset], settings, memory))
                log.info("%s", {key: measured[-1][key] for key in ("dataset", "cores", "status", "sentence")})
            version = bench.version or version
    if all(point["status"] == "failed" for point in measured):
        raise GpufeedError(
            f"no point of {decoder} could be measured: {measured[0]['sentence']}",
            "at least one",
            "see the log of its rule",
        )
    return {
        "device": device.type,
        "parallel": parallel,
        "version": version,
        "left_out": left_out,
        "points": measured,
    }


def how(decoder: str, device: torch.device) -> str:
    """Return how the decoder uses cores; raise Skip for a GPU decoder without a GPU."""
    if decoder in STRIP_SETS:
        on_gpu = device.type == "cuda" and STRIP_SETS[decoder] is None
        return "device" if on_gpu else "own threads"
    try:
        parallel = load("decoder", decoder).parallel
    except ModuleNotFoundError as error:
        raise lacking("decoder", decoder, error) from error
    if parallel == "device" and device.type != "cuda":
        raise Skip(f"Decoder {decoder} decodes on a CUDA GPU, and this sweep's device is {device.type}.")
    return parallel


class Bench:
    """A decoder's bulk form, opened when first needed, and again after an error."""

    def __init__(self, decoder: str, cores: int, core_ids: list[int] | None, device: torch.device):
        self.decoder, self.cores, self.core_ids, self.device = decoder, cores, core_ids, device
        self.bulk: Bulk | None = None
        self.version: str | None = None

    def open(self, files: Files) -> Bulk:
        """Open the bulk for these files; raise Skip if the node lacks what the decoder needs."""
        if self.bulk is None:
            self.bulk = self._new()
        self.bulk.open(files)
        self.version = self.bulk.version()
        return self.bulk

    def _new(self) -> Bulk:
        if self.decoder in STRIP_SETS:
            return StripsBulk(self.cores, self.device, STRIP_SETS[self.decoder])
        if self.decoder in READ_BY_DALI:
            from gpufeed.benchmarks.dali_points import DaliBulk

            return DaliBulk(self.decoder, self.cores, self.device)
        return open_bulk(self.decoder, self.cores, self.device, self.core_ids)

    def drop(self) -> None:
        """Close the bulk; the next point opens a new one."""
        if self.bulk is not None:
            self.bulk.close()
            self.bulk = None

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, *exception) -> None:
        self.drop()


class DeviceMemory:
    """GPU memory that other libraries than torch have taken since the start."""

    def __init__(self, device: torch.device):
        self.device = device
        if device.type == "cuda":
            torch.zeros(1, device=device)  # so that the context does not count
            torch.cuda.synchronize(device)
            self.before = self._used()

    def _used(self) -> int:
        free, total = torch.cuda.mem_get_info(self.device)
        return total - free - torch.cuda.memory_reserved(self.device)

    def buffers_mib(self) -> float | None:
        """Return the memory in MiB, 0 at the start; None without CUDA."""
        return max(0, self._used() - self.before) / 2**20 if self.device.type == "cuda" else None


def measure_point(
    bench: Bench, point: Point, source: Stored, settings: Mapping, memory: DeviceMemory
) -> dict:
    """Return a point as in the schema; an error makes it a failed point. Raises only Skip."""
    height, width = source.size
    found = {
        **asdict(point),
        "height": height,
        "width": width,
        "pixels": source.images.pixels,
        "bytes_per_pixel": source.bytes_per_pixel,
        "quality": source.quality,
        "status": "done",
        "sentence": None,
        "images": [],
        "images_per_s": [],
        "evicted_share": [],
        "fell_back": 0,
        "buffers_mib": None,
        "physical_cores": physical_cores(bench.core_ids),
    }
    try:
        bulk = bench.open(source.files(point.batch_size))
        return found | passes(bulk, point, source, settings, memory) | bulk.settings
    except Skip:
        raise
    except Refused as refused:
        return found | {"status": "refused", "sentence": str(refused)}
    except Exception as error:
        log.exception("%s failed", point)
        bench.drop()
        return found | {"status": "failed", "sentence": one_line(error)}


def passes(bulk: Bulk, point: Point, source: Stored, settings: Mapping, memory: DeviceMemory) -> dict:
    """Warm up, then time `rounds` passes; raise Refused if the page cache cannot be evicted."""
    cold, reads = point.cache == "cold", bulk.reads()
    if not cold:
        read_in(reads)

    def chill() -> float | None:
        if not cold:
            return None
        bulk.let_go()
        return make_cold(reads)

    # a cold pass must not read a file twice
    most = max(1, source.images.count // point.batch_size) * point.batch_size if cold else None
    images = images_of_a_pass(bulk, point.batch_size, settings["seconds"], most, chill)
    before, counts, rates, shares, buffers = bulk.fell_back, [], [], [], []
    for _ in range(settings["rounds"]):
        if (share := chill()) is not None:
            shares.append(share)
        count, seconds = timed(bulk, images)
        counts.append(count)
        rates.append(count / seconds)
        buffers.append(memory.buffers_mib())
    return {
        "images": counts,
        "images_per_s": rates,
        "evicted_share": shares,
        "fell_back": bulk.fell_back - before,
        "buffers_mib": None if buffers[0] is None else max(buffers),
    }


def images_of_a_pass(bulk: Bulk, batch_size: int, seconds: float, most: int | None, chill) -> int:
    """Return how many images, in whole batches, take about `seconds`, by passes that grow from one batch.

    These passes are the warm-up. chill: called before each. most: the most images.
    """
    images, most = batch_size, math.inf if most is None else most
    while True:
        chill()
        count, took = timed(bulk, images)
        wanted = max(1, round(seconds * count / took / batch_size)) * batch_size
        if took >= seconds / 3 or images >= most:
            return int(min(wanted, most))
        images = int(min(max(wanted, 2 * images), 8 * images, most))


def timed(bulk: Bulk, images: int) -> tuple[int, float]:
    """Return (images, seconds) of one pass, from the first open to the last image on the device."""
    synchronise(bulk.device)
    start = time.perf_counter()
    count = sum(len(batch) for batch in bulk.run(images))
    synchronise(bulk.device)
    return count, time.perf_counter() - start


def for_job(job: Any) -> None:
    """Run rule measure_decoder. job: a gpufeed.job.Job."""
    job.take_gpus(1, job.params.device, share=False)
    job.load_extension()
    names, settings, strips = job.wildcards, job.params.settings, job.input.get("strips") or []
    manifests = {name: job.input[name] for name in settings["datasets"]}
    sets = dict(zip(manifests, [strips] if isinstance(strips, str) else strips, strict=False))
    asked = {"device": job.params.device, "strips": sets, **job.common_arguments}
    sweep = measure_decoder(names.experiment, names.decoder, settings, manifests, **asked)
    job.write_document(sweep, job.output[0], DECODING.write, sweep["decoder"])
