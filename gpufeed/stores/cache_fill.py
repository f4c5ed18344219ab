"""Decode a whole dataset into the rows of a cache, by processes or by one decoder that uses all cores."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tqdm import tqdm

from gpufeed.core.errors import GpufeedError
from gpufeed.core.registry import load
from gpufeed.datasets.manifest import Manifest
from gpufeed.datasets.quarantine import read_or_reason
from gpufeed.decoders.base import Decoder, DeviceDecoded, Outcome
from gpufeed.decoders.fallback import ResizingDecoder
from gpufeed.decoders.pillow import resized
from gpufeed.stores.scaled_cache import ScaledImages
from gpufeed.system.processes import run

if TYPE_CHECKING:
    import torch


class RowWriter:
    """Write batches of images into an allocated uint8 (N, H, W, 3) array file.

    Every process of this node sees the rows at once. Nothing here waits for the disk, since such a wait would
    count as time of the decoder. Images from a CUDA device go through one pinned buffer as large as the
    largest batch so far, so that neither host nor device ever holds more than a batch.
    """

    def __init__(self, path: Path):
        self.rows = np.load(path, mmap_mode="r+")
        self.written = np.zeros(len(self.rows), dtype=np.bool_)
        self.buffer: torch.Tensor | None = None  # uint8 (n, H, W, 3), pinned

    def write(self, ids: np.ndarray | Sequence[int], images: "np.ndarray | torch.Tensor") -> None:
        """Write images, uint8 (n, H, W, 3), ready for the current stream; row i is sample ids[i].

        Raises GpufeedError for images of another shape or dtype.
        """
        found = (tuple(images.shape), str(images.dtype).removeprefix("torch."))
        if found != ((len(ids), *self.rows.shape[1:]), "uint8"):
            raise GpufeedError(
                f"{found[1]} {found[0]} for {len(ids)} rows of a cache",
                f"uint8 {(len(ids), *self.rows.shape[1:])}",
                "prepare the dataset at one size, or use another decoder",
            )
        self.rows[ids] = images if isinstance(images, np.ndarray) else self._on_host(images)
        self.written[ids] = True

    def _on_host(self, images: "torch.Tensor") -> np.ndarray:
        if images.device.type == "cpu":
            return images.numpy()
        if self.buffer is None or len(self.buffer) < len(images):
            self.buffer = images.new_empty(images.shape, device="cpu", pin_memory=images.is_cuda)
        return self.buffer[: len(images)].copy_(images).numpy()  # sync point: waits for the copy


def allocate(path: Path, shape: tuple[int, ...]) -> None:
    """Make an empty uint8 array file and reserve its blocks.

    Otherwise a memory map that meets a full disk later would end the process by SIGBUS.
    """
    np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def write_rows(path: Path, batches: Iterable[tuple[Sequence[int], "np.ndarray | torch.Tensor"]]) -> None:
    """Fill an allocated file from (ids, images) as `RowWriter.write` takes them, in any order.

    Raises GpufeedError if a row is left unwritten.
    """
    rows = RowWriter(path)
    for ids, images in batches:
        rows.write(ids, images)
    if missing := len(rows.written) - int(rows.written.sum()):
        raise GpufeedError(
            f"{missing} of {len(rows.written)} samples without an image",
            "one for every sample of the manifest",
            "build the store that the images come from again",
        )


CHUNK = 64  # images a task: 64 decoded images of 224 px are 10 MB, the most that a worker holds
BATCH = 1024  # images a call of a decoder that spreads one call over all cores or a GPU, if so many fit
BATCH_BYTES = 256 * 2**20  # of decoded pixels in such a call


@lru_cache(maxsize=1)
def decoder(name: str, threads: int, resize: tuple[int, int] | None = None) -> Decoder:
    """Return this process's decoder, made once, since some take longer to set up than to decode a task.

    resize: (height, width) to which the decoder itself resizes, if its library can. Raises Skip with the
    decoder's reason if this node lacks what it needs.
    """
    kind = load("decoder", name)
    return kind(threads, resize) if resize and issubclass(kind, ResizingDecoder) else kind(threads)


def fill_in_processes(
    manifest: Manifest, decoder_name: str, target: Path, processes: int
) -> Iterator[dict[str, str]]:
    """Decode every image into its row of `target` in several processes; yield those that failed."""
    task = partial(decode_task, decoder_name, target, manifest.info.resize)
    return in_chunks(manifest, decoder_name, task, processes)


def in_chunks(
    manifest: Manifest, decoder_name: str, task: Callable, processes: int, *columns: Sequence
) -> Iterator[dict[str, str]]:
    """Run a task on CHUNK files at a time in several processes; yield the images that failed.

    task: (row of the first file, files, their part of each column) -> (row, reason) of the failures.
    """
    files = manifest.paths()
    starts = range(0, len(files), CHUNK)
    parts = ([column[start : start + CHUNK] for start in starts] for column in (files, *columns))
    with tqdm(total=len(files), unit="image", desc=f"decoding with {decoder_name}") as progress:
        for start, failures in zip(starts, run(task, (starts, *parts), processes), strict=True):
            progress.update(min(CHUNK, len(files) - start))
            yield from named(manifest, failures)


def fill_made(manifest: Manifest, target: Path) -> Iterator[dict[str, str]]:
    """Fill the rows with images that no file holds; nothing is decoded, and none fails."""
    rows = RowWriter(target)
    for row in tqdm(range(len(manifest)), unit="image", desc=f"making {manifest.info.dataset}"):
        rows.write([row], manifest.pixels(row)[None])
    yield from ()


def fill_here(manifest: Manifest, decoder: Decoder, target: Path) -> Iterator[dict[str, str]]:
    """Do what `fill_in_processes` does with a decoder that uses all its cores, or the GPU, in one call.

    A thread reads the files of the next call while this one decodes.
    """
    files, rows = manifest.paths(), RowWriter(target)
    # by the size of the images in the files, which are decoded before they are resized
    pixels = manifest.table["height"].to_numpy(np.int64) * manifest.table["width"].to_numpy(np.int64)
    chunks = list(calls(pixels.tolist()))
    with (
        ThreadPoolExecutor(1) as reader,
        tqdm(total=len(files), unit="image", desc=f"decoding with {decoder.name}") as progress,
    ):
        coming = reader.submit(read_files, files[chunks[0]])
        for chunk, after in zip_longest(chunks, chunks[1:]):
            read = coming.result()
            coming = reader.submit(read_files, files[after]) if after else None
            yield from named(manifest, decode_rows(decoder, rows, manifest.info.resize, chunk.start, read))
            progress.update(len(read))


def named(manifest: Manifest, failures: list[tuple[int, str]]) -> Iterator[dict[str, str]]:
    """Yield each failure, (row, reason), as in CacheInfo.quarantined: {"path", "reason"}."""
    for row, reason in failures:
        yield {"path": manifest.table["path"].iloc[row], "reason": reason}


def calls(pixels: list[int]) -> Iterator[slice]:
    """Yield the rows of each call: up to BATCH images, fewer if they are large. pixels: of each file."""
    start = total = 0
    for row, count in enumerate(pixels):
        total += 3 * count
        if row > start and (row - start == BATCH or total > BATCH_BYTES):
            yield slice(start, row)
            start, total = row, 3 * count
    yield slice(start, len(pixels))


def decode_task(
    decoder_name: str, target: Path, resize: tuple[int, int] | None, start: int, files: list[Path]
) -> list[tuple[int, str]]:
    """Call `decode_rows` in a decoding process."""
    return decode_rows(decoder(decoder_name, 1, resize), RowWriter(target), resize, start, read_files(files))


def read_files(files: list[Path]) -> list[bytes | str]:
    """Return the content of each file, or the reason why it cannot be read."""
    return [read_or_reason(file) for file in files]


def decode_rows(
    decoder: Decoder, rows: RowWriter, resize: tuple[int, int] | None, start: int, read: list[bytes | str]
) -> list[tuple[int, str]]:
    """Decode what was read into the rows from `start` on; return (row, reason) of the failures.

    resize: the size of the rows, to which other images are resized; None counts them as failed.
    """
    failures = [(row, data) for row, data in enumerate(read, start) if isinstance(data, str)]
    readable = [(row, data) for row, data in enumerate(read, start) if isinstance(data, bytes)]
    ids, files = [row for row, _ in readable], [data for _, data in readable]
    through = decode_on_device if decoder.parallel == "device" else decode_on_host
    return sorted([*failures, *(through(decoder, rows, resize, ids, files) if files else [])])


def decode_on_host(
    decoder: Decoder, rows: RowWriter, resize: tuple[int, int] | None, ids: list[int], files: list[bytes]
) -> Iterator[tuple[int, str]]:
    """Decode files into the rows `ids`; yield (row, reason) of the failures."""
    decoded, shape = decoder.decode(files), rows.rows.shape[1:]
    for row, image, outcome in zip(ids, decoded.images, decoded.outcomes, strict=True):
        if image is None:
            yield row, outcome.reason or "no reason given"
        elif image.shape != shape and not resize:
            yield row, f"decoded to {image.shape}, the manifest says {shape}"
        else:
            rows.write([row], resized(image, shape[:2])[None])


def decode_on_device(
    decoder: Decoder, rows: RowWriter, resize: tuple[int, int] | None, ids: list[int], files: list[bytes]
) -> Iterator[tuple[int, str]]:
    """Do what `decode_on_host` does by one batch on the decoder's device, copied to the host at once."""
    import torch

    images = torch.empty((len(files), *rows.rows.shape[1:]), dtype=torch.uint8, device=decoder.device)
    if resize and not isinstance(decoder, ResizingDecoder):
        outcomes = resize_into(images, decoder.decode_to(files, decoder.device))
    else:
        outcomes = decoder.decode_into(files, images)
    whole = [place for place, outcome in enumerate(outcomes) if outcome.decoder is not None]
    if len(whole) < len(files):
        images = images[whole]
    rows.write([ids[place] for place in whole], images)
    for row, outcome in zip(ids, outcomes, strict=True):
        if outcome.decoder is None:
            yield row, outcome.reason or "no reason given"


def resize_into(out: "torch.Tensor", decoded: DeviceDecoded) -> list[Outcome]:
    """Write images of any size into the rows of out, uint8 (N, H, W, 3); return their outcomes.

    It is torchvision's antialiased bilinear resize, which matches Pillow's on the host.
    """
    from torchvision.transforms.v2 import functional

    for place, image in enumerate(decoded.images):
        if image is not None:
            planes = functional.resize(
                image.permute(2, 0, 1), list(out.shape[1:3]), antialias=True
            )  # (3, H, W)
            out[place].copy_(planes.permute(1, 2, 0))
    return decoded.outcomes


def fill_scaled(
    manifest: Manifest, decoder_name: str, target: Path, short_side: int, processes: int
) -> Iterator[dict[str, str]]:
    """Decode and resize every image to its place in `target`; yield those that nobody can decode."""
    images, originals = ScaledImages.of(manifest, short_side), manifest.sizes().tolist()
    places = [(*images.place(row), original) for row, original in enumerate(originals)]
    return in_chunks(manifest, decoder_name, partial(scale_task, decoder_name, target), processes, places)


def scale_task(
    decoder_name: str,
    target: Path,
    start: int,
    files: list[Path],
    places: list[tuple[slice, tuple[int, int], list[int]]],
) -> list[tuple[int, str]]:
    """Decode and resize a chunk of files into their places; return (row, reason) of those that failed.

    places: for each file its bytes in the cache, its size there, and its size in the manifest.
    """
    pixels, failures, ours = np.load(target, mmap_mode="r+"), [], decoder(decoder_name, 1)
    for row, (data, (place, size, original)) in enumerate(zip(read_files(files), places, strict=True), start):
        if isinstance(data, str):
            failures.append((row, data))
            continue
        decoded = ours.decode([data])
        if (image := decoded.images[0]) is None:
            failures.append((row, decoded.outcomes[0].reason or "no reason given"))
        elif list(image.shape[:2]) != original:
            failures.append((row, f"decoded to {image.shape}, the manifest says {original}"))
        else:
            pixels[place] = resized(image, size).reshape(-1)
    return failures
