"""Builds the .beton file of a dataset, the same bytes on every machine.

FFCV takes no notice of what libjpeg-turbo says of a file: one that it refuses becomes whatever the memory
held before. So each is decoded here as FFCV will do it, and stands as it is if that gives Pillow's pixels. Of
every other file Pillow's pixels are stored, which is FFCV's other form of an image.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from simplejpeg import decode_jpeg
from tqdm import tqdm

from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import enough_disk
from gpufeed.datasets.manifest import Manifest
from gpufeed.decoders.base import bad_file
from gpufeed.decoders.encoded_file import JPEG_KINDS, read_file, read_header
from gpufeed.decoders.pillow import PillowDecoder, resized
from gpufeed.stores.cache_fill import CHUNK
from gpufeed.stores.cache_format import file_digest, info_path, manifest_digest, write_info
from gpufeed.stores.ffcv_store import JPEG, PIXELS, TOLERANCE, BetonInfo, open_beton, page_for, write_beton
from gpufeed.system.build_once import one_builder, own_partial
from gpufeed.system.processes import run

TO_RGB = JPEG_KINDS | {"jpeg RGB"}  # that libjpeg-turbo turns into RGB by itself; simplejpeg does CMYK, too


def build(manifest: Manifest, path: str | Path, workers: int = 1) -> BetonInfo:
    """Writes all samples, by their ids, into `path`, whole or not at all, and its sidecar.

    workers: processes that read and decode. Where another process builds the same file at this moment, that
    one is taken. Raises GpufeedError for an image that cannot be read or decoded, a full disk and a dead
    worker.
    """
    path = Path(path)
    with enough_disk(path.parent), one_builder(path) as waited:
        if waited and (info := finished(manifest, path)):
            return info
        info_path(path).unlink(missing_ok=True)
        partial, size = own_partial(path), manifest.image_size()
        page = page_for(3 * size[0] * size[1])
        try:
            jpegs = write_beton(partial, samples(manifest, page, workers), manifest.labels(), size, page)
            info = BetonInfo(
                manifest_sha256=manifest_digest(manifest),
                count=len(manifest),
                jpegs=jpegs,
                size=partial.stat().st_size,
                sha256=file_digest(partial),
            )
            os.replace(partial, path)
            write_info(info, info_path(path))
        finally:
            partial.unlink(missing_ok=True)
    return info


def finished(manifest: Manifest, path: Path) -> BetonInfo | None:
    """The sidecar of the file at `path` if that is this manifest's; else None."""
    try:
        return open_beton(path, manifest)
    except GpufeedError:
        return None


def samples(manifest: Manifest, page: int, workers: int) -> Iterator[tuple[int, bytes]]:
    """(JPEG or PIXELS, the data) of each sample by its id."""
    files = [os.fspath(file) for file in manifest.paths()]
    chunks = [files[start : start + CHUNK] for start in range(0, len(files), CHUNK)]
    same = ([value] * len(chunks) for value in (manifest.image_size(), bool(manifest.info.resize), page))
    with tqdm(total=len(files), unit="image", desc="writing the .beton file") as progress:
        for found in run(stored_chunk, (chunks, *same), workers):
            yield from found
            progress.update(len(found))


def stored_chunk(files: list[str], size: tuple[int, int], resize: bool, page: int) -> list[tuple[int, bytes]]:
    """As `stored`, for several files."""
    return [stored(file, size, resize, page) for file in files]


def stored(file: str, size: tuple[int, int], resize: bool, page: int) -> tuple[int, bytes]:
    """JPEG and the file as it is, or PIXELS and those of Pillow, of (height, width) `size`.

    Raises GpufeedError that names a file which cannot be read, decoded, or has another size unless `resize`.
    """
    data = read_file(file)
    decoded = PillowDecoder().decode([data])
    image = decoded.images[0]
    if image is None:
        raise bad_file(file, str(decoded.outcomes[0].reason))
    if resize:
        image = resized(image, size)
    if image.shape[:2] != size:
        raise bad_file(file, f"decoded to {image.shape}, the manifest says {(*size, 3)}")
    if len(data) <= page and decodes_alike(data, image):
        return JPEG, data
    return PIXELS, image.tobytes()


def decodes_alike(data: bytes, image: np.ndarray) -> bool:
    """Whether libjpeg-turbo, asked as FFCV asks it, decodes a file to `image`, without a word of warning."""
    header = read_header(data)
    if header is None or header.kind not in TO_RGB:
        return False
    try:
        return TOLERANCE.exceeded(decode_jpeg(data, fastdct=True), image) is None
    except ValueError:
        return False
