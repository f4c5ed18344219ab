"""The cache: a dataset decoded once to one uint8 array, (N, H, W, 3) in sample id order, all splits.

`<decoder>.npy` is a plain NumPy file. `<decoder>.json` beside it is written last and says what the
array was made from, so that an array without it counts as unfinished.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from tqdm import tqdm

from gpufeed.data.disk import enough_disk
from gpufeed.data.manifest import COLUMNS, Manifest
from gpufeed.decode.base import Decoder
from gpufeed.errors import GpufeedError, Skip
from gpufeed.registry import load

CHUNK = 64  # images a task: 64 decoded images of 224 px are 10 MB, the most that a worker holds
BATCH = 1024  # images a task of a decoder that spreads one call over all cores or a GPU, if so many fit
BATCH_BYTES = 256 * 2**20  # of decoded pixels in such a task
SHOWN = 20  # quarantined images in an error message; the log has them all
REMAKE = "delete the cache's folder and run snakemake to build it again"

log = logging.getLogger("gpufeed")


@dataclass(frozen=True)
class Quarantined:
    """An image that could not be decoded: its path in the manifest, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class CacheInfo:
    """What the sidecar says. sha256: of the whole .npy file; shape: (N, H, W, 3), uint8."""

    decoder: str
    decoder_version: str
    manifest_sha256: str
    count: int
    shape: tuple[int, int, int, int]
    sha256: str
    quarantined: list[Quarantined]


def info_path(path: Path) -> Path:
    """The sidecar of a cache file."""
    return path.with_suffix(".json")


def manifest_digest(manifest: Manifest) -> str:
    """sha256 over all that a manifest says, the same on every machine and library version."""
    digest = hashlib.sha256(json.dumps(asdict(manifest.info), sort_keys=True).encode())
    for column in COLUMNS:
        digest.update("\n".join(map(str, manifest.table[column].tolist())).encode() + b"\0")
    return digest.hexdigest()


def check_manifest(path: Path, built_from: str, manifest: Manifest, remedy: str) -> None:
    """Raises GpufeedError if the file at `path` was built from a manifest of another digest."""
    found = manifest_digest(manifest)
    if built_from != found:
        raise GpufeedError(
            f"{path} was built from another manifest ({built_from[:12]})",
            f"one built from the present manifest ({found[:12]})",
            remedy,
        )


def build(manifest: Manifest, decoder_name: str, path: str | Path, workers: int = 1) -> CacheInfo:
    """Decodes the whole dataset into `path`, whole or not at all, and writes its sidecar.

    workers: cores to use, by as many processes or by the decoder's own threads (Decoder.parallel); 1
    decodes in this process. Raises GpufeedError for images of several sizes, images that cannot be
    decoded (all are listed in the log), a full disk, a dead worker and a decoder that this node lacks.
    """
    path = Path(path)
    shape = (len(manifest), *manifest.image_size(), 3)
    partial = path.with_name(path.name + ".partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    in_processes = load("decoder", decoder_name).parallel == "processes"
    processes, threads = (workers, 1) if in_processes else (1, workers)
    version = decoder(decoder_name, threads).version()
    info_path(path).unlink(missing_ok=True)
    try:
        with enough_disk(path.parent):
            allocate(partial, shape)
            quarantined = list(fill(manifest, decoder_name, partial, processes, threads))
            if quarantined:
                raise undecodable(quarantined, len(manifest))
            info = CacheInfo(
                decoder=decoder_name,
                decoder_version=version,
                manifest_sha256=manifest_digest(manifest),
                count=len(manifest),
                shape=shape,
                sha256=file_digest(partial),
                quarantined=quarantined,
            )
            os.replace(partial, path)
            write_info(info, info_path(path))
    finally:
        partial.unlink(missing_ok=True)
    return info


@lru_cache(maxsize=1)
def decoder(name: str, threads: int) -> Decoder:
    """This process's decoder, made once, as some take longer to set up than to decode a task.

    Raises GpufeedError with the decoder's own sentence if this node lacks what it needs.
    """
    try:
        return load("decoder", name)(threads)
    except Skip as skip:
        raise GpufeedError(
            str(skip), f"a node that can run decoder {name}", "build on such a node, or take another decoder"
        ) from skip


def allocate(path: Path, shape: tuple[int, ...]) -> None:
    """Makes an empty uint8 array file and reserves its blocks.

    Reserved here, because a memory map that runs into a full disk later ends the process by SIGBUS.
    """
    np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape).flush()
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def fill(
    manifest: Manifest, decoder_name: str, target: Path, processes: int, threads: int
) -> Iterator[Quarantined]:
    """Decodes every image into its row of `target`; yields those that cannot be decoded."""
    files = manifest.paths()
    size = images_a_task(manifest.image_size(), decoder_name)
    starts = range(0, len(files), size)
    chunks = [files[start : start + size] for start in starts]
    same = ([value] * len(chunks) for value in (decoder_name, threads, target))
    tasks = (*same, starts, chunks)
    with tqdm(total=len(files), unit="image", desc=f"decoding with {decoder_name}") as progress:
        for chunk, failures in zip(chunks, run(decode_rows, tasks, processes), strict=True):
            progress.update(len(chunk))
            for row, reason in failures:
                yield Quarantined(manifest.table["path"].iloc[row], reason)


def images_a_task(size: tuple[int, int], decoder_name: str) -> int:
    """CHUNK for one core; up to BATCH where a call is spread, of images of (height, width) pixels."""
    if load("decoder", decoder_name).parallel == "processes":
        return CHUNK
    height, width = size
    return max(1, min(BATCH, BATCH_BYTES // (height * width * 3)))


def run(function, tasks: tuple, workers: int) -> Iterator:
    """The results of `function` over zipped `tasks`, in order, from a process pool if workers > 1."""
    if workers <= 1:
        yield from map(function, *tasks)
        return
    try:
        with ProcessPoolExecutor(workers) as pool:
            yield from pool.map(function, *tasks)
    except BrokenProcessPool as error:
        raise GpufeedError(
            "a decoding process died, as happens when memory runs out",
            f"{workers} decoding processes that stay alive",
            "give the rule fewer threads or the job more memory, and run snakemake again",
        ) from error


def decode_rows(
    decoder_name: str, threads: int, target: Path, start: int, files: list[Path]
) -> list[tuple[int, str]]:
    """Decodes `files` into the rows of `target` from `start` on; returns (row, reason) of the failures."""
    rows = np.load(target, mmap_mode="r+")  # (N, H, W, 3)
    failures: list[tuple[int, str]] = []
    readable: list[tuple[int, bytes]] = []
    for row, file in enumerate(files, start):
        try:
            readable.append((row, file.read_bytes()))
        except OSError as error:
            failures.append((row, f"cannot be read: {error.strerror}"))
    decoded = decoder(decoder_name, threads).decode([data for _, data in readable])
    for (row, _), image, outcome in zip(readable, decoded.images, decoded.outcomes, strict=True):
        if image is None:
            failures.append((row, outcome.reason or "no reason given"))
        elif image.shape != rows.shape[1:]:
            failures.append((row, f"decoded to {image.shape}, the manifest says {rows.shape[1:]}"))
        else:
            rows[row] = image
    rows.flush()
    return sorted(failures)


def undecodable(quarantined: list[Quarantined], count: int) -> GpufeedError:
    """The error that lists the images which nobody can decode; the log gets the whole list."""
    lines = [f"{image.path}: {image.reason}" for image in quarantined]
    for line in lines:
        log.error("quarantined %s", line)
    more = [f"and {len(lines) - SHOWN} more, all in the log"] if len(lines) > SHOWN else []
    return GpufeedError(
        f"{len(lines)} of {count} images cannot be decoded\n  " + "\n  ".join(lines[:SHOWN] + more),
        "a dataset whose every image can be decoded",
        "fetch the dataset again, or take these files out of its source",
    )


def file_digest(path: Path) -> str:
    """sha256 of a file, as sha256sum gives it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_info(info: CacheInfo, path: Path) -> None:
    """Writes the sidecar, whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(asdict(info), indent=1) + "\n")
    os.replace(partial, path)


def read_info(path: Path) -> CacheInfo:
    """Reads the sidecar of the cache file `path`; raises GpufeedError if there is none that is whole."""
    try:
        data = json.loads(info_path(path).read_text())
        quarantined = [Quarantined(**image) for image in data.pop("quarantined")]
        return CacheInfo(**{**data, "shape": tuple(data["shape"])}, quarantined=quarantined)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise GpufeedError(
            f"no readable {info_path(path)} ({error})", "a cache that was built to its end", REMAKE
        ) from error


def open_cache(path: str | Path, manifest: Manifest, verify: bool = False) -> np.memmap:
    """The cached pixels, read-only uint8 (N, H, W, 3), row i = sample id i.

    Checks shape and manifest; with verify=True also every byte. Raises GpufeedError if one differs.
    """
    path = Path(path)
    info = read_info(path)
    check_manifest(path, info.manifest_sha256, manifest, REMAKE)
    try:
        array = np.load(path, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise GpufeedError(f"no readable array at {path} ({error})", f"uint8 {info.shape}", REMAKE) from error
    if array.shape != info.shape or array.dtype != np.uint8:
        raise GpufeedError(f"{array.dtype} {array.shape} in {path}", f"uint8 {info.shape}", REMAKE)
    if verify and (digest := file_digest(path)) != info.sha256:
        raise GpufeedError(f"sha256 {digest} of {path}", info.sha256, REMAKE)
    return array
