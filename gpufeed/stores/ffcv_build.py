"""Build the .beton file of a dataset.

Images of one size: FFCV ignores libjpeg-turbo's errors, so a file that libjpeg-turbo refuses yields whatever
the memory held before. So each file is decoded here as FFCV will do it, and is stored unchanged if that gives
Pillow's pixels. Otherwise its pixels by Pillow are stored, which is FFCV's other form of an image. The .beton
file has the same bytes on every machine.

Images of several sizes (photographs): stored from Pillow's pixels as FFCV's own writer does with its settings
for ImageNet (`rewritten`). This machine's OpenCV encodes their JPEGs.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
from simplejpeg import decode_jpeg
from tqdm import tqdm

from gpufeed.core.file_writes import sha256_of, whole
from gpufeed.datasets.manifest import Manifest
from gpufeed.decoders.base import bad_file
from gpufeed.decoders.encoded_file import JPEG_KINDS, read_file, read_header
from gpufeed.decoders.pillow import PillowDecoder, resized
from gpufeed.stores.base import build_once, manifest_digest
from gpufeed.stores.cache_fill import CHUNK
from gpufeed.stores.ffcv_store import (
    JPEG,
    MAX_RESOLUTION,
    PAGE,
    PIXELS,
    TOLERANCE,
    BetonInfo,
    Stored,
    open_beton,
    page_for,
    rewritten,
    write_beton,
)
from gpufeed.system.processes import run

TO_RGB = JPEG_KINDS | {"jpeg RGB"}  # libjpeg-turbo itself turns these into RGB; simplejpeg also takes CMYK


def build(manifest: Manifest, path: str | Path, workers: int = 1) -> BetonInfo:
    """Write all samples, by their ids, into `path`, whole or not at all, and its sidecar.

    workers: processes that read and decode. If another process is building the same file, that one is used.
    Raises GpufeedError for an image that cannot be read or decoded, a full disk and a dead worker.
    """
    path = Path(path)

    def make() -> BetonInfo:
        one = one_size(manifest)
        page = page_for(3 * one[0] * one[1]) if one else PAGE
        with whole(path, shared=True) as partial:
            jpegs = write_beton(partial, samples(manifest, one, page, workers), manifest.labels(), page)
            return BetonInfo(
                manifest_sha256=manifest_digest(manifest),
                count=len(manifest),
                jpegs=jpegs,
                size=partial.stat().st_size,
                sha256=sha256_of(partial),
                max_resolution=None if one else MAX_RESOLUTION,
            )

    return build_once(path, make, lambda: open_beton(path, manifest))


def one_size(manifest: Manifest) -> tuple[int, int] | None:
    """Return (height, width) of all images; None if they differ and are not resized."""
    several = manifest.info.resize is None and len(np.unique(manifest.sizes(), axis=0)) > 1
    return None if several else manifest.image_size()


def samples(manifest: Manifest, one: tuple[int, int] | None, page: int, workers: int) -> Iterator[Stored]:
    """Yield each sample in the order of the ids. one: from `one_size`."""
    files = [os.fspath(file) for file in manifest.paths()]
    starts = range(0, len(files), CHUNK)
    chunks = [files[start : start + CHUNK] for start in starts]
    if one is None:
        sizes = manifest.sizes().tolist()
        work, tasks = rewritten_chunk, (chunks, starts, [sizes[start : start + CHUNK] for start in starts])
    else:
        same = ([value] * len(chunks) for value in (one, bool(manifest.info.resize), page))
        work, tasks = stored_chunk, (chunks, *same)
    with tqdm(total=len(files), unit="image", desc="writing the .beton file") as progress:
        for found in run(work, tasks, workers):
            yield from found
            progress.update(len(found))


def rewritten_chunk(files: list[str], first: int, sizes: list[list[int]]) -> list[Stored]:
    """Return several files as FFCV's writer stores them. first: sample id of the first; sizes: of each."""
    cv2.setNumThreads(1)  # there is a process for each core
    each = enumerate(zip(files, sizes, strict=True), first)
    return [rewritten(number, decoded(file, read_file(file), tuple(size))) for number, (file, size) in each]


def stored_chunk(files: list[str], size: tuple[int, int], resize: bool, page: int) -> list[Stored]:
    """Return what `stored` returns for several files."""
    return [stored(file, size, resize, page) for file in files]


def stored(file: str, size: tuple[int, int], resize: bool, page: int) -> Stored:
    """Return the unchanged file as JPEG, or Pillow's pixels of (height, width) `size` as PIXELS.

    Raises GpufeedError naming a file that cannot be read or decoded, or has another size without `resize`.
    """
    data = read_file(file)
    image = decoded(file, data, size, resize)
    if len(data) <= page and decodes_alike(data, image):
        return Stored(JPEG, *size, data)
    return Stored(PIXELS, *size, image.tobytes())


def decoded(file: str, data: bytes, size: tuple[int, int], resize: bool = False) -> np.ndarray:
    """Return Pillow's pixels of a file, uint8 (H, W, 3) of (height, width) `size`; raises as `stored`."""
    found = PillowDecoder().decode([data])
    image = found.images[0]
    if image is None:
        raise bad_file(file, str(found.outcomes[0].reason))
    if resize:
        image = resized(image, size)
    if image.shape[:2] != size:
        raise bad_file(file, f"decoded to {image.shape}, the manifest says {(*size, 3)}")
    return image


def decodes_alike(data: bytes, image: np.ndarray) -> bool:
    """Return whether libjpeg-turbo, called as FFCV calls it, decodes a file to `image` without a warning."""
    header = read_header(data)
    if header is None or header.kind not in TO_RGB:
        return False
    try:
        return TOLERANCE.exceeded(decode_jpeg(data, fastdct=True), image) is None
    except ValueError:
        return False
