"""Mosaics: images of any size put together from the real images of another dataset.

Image i depends on (seed, i), the options and the other dataset, not on the images before it. An image larger
than the dataset's own is a grid of tiles, a smaller one a crop of one tile. Each is encoded once, as baseline
JPEG 4:2:0 with the standard Huffman tables and whole MCUs, so that it can go into strips.
"""

import os
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from gpufeed.core.config_sources import checked_options
from gpufeed.core.errors import GpufeedError
from gpufeed.datasets.manifest import DatasetInfo, Manifest
from gpufeed.datasets.staging import jpeg, only_manifest, staging
from gpufeed.system.processes import run


@dataclass(frozen=True)
class Options:
    """of: the dataset that the tiles come from; size: side in pixels; count: images."""

    of: str
    size: int
    count: int
    quality: int
    seed: int


@dataclass(frozen=True)
class Tile:
    """A rectangle of one file: its pixels from (top, left) on are copied to (row, column) of the mosaic."""

    file: Path
    top: int
    left: int
    row: int
    column: int


def reorganise(archives: list[Path], out: Path, dataset: str, options: dict) -> Manifest:
    """Write mosaics below `out/images/train/` and their manifest, mean and std as those of their tiles.

    archives: the manifest of the dataset `of`, and nothing else. The label is that of the first tile. Raises
    GpufeedError for options that are unknown or impossible, and for tiles of several sizes.
    """
    choice = Options(**checked_options("mosaic", options))
    tiles = tiles_of(archives, choice)
    colour = colour_ids(tiles)
    plans = [plan(index, tiles, colour, choice) for index in range(choice.count)]
    classes, labels = tiles.info.classes, tiles.labels()
    shape, size = (choice.size, choice.size, 3), 0
    with staging(out) as stage:
        tasks = ([drawn for _, drawn in plans], [choice] * len(plans))
        files = tqdm(
            run(encode, tasks, processes(choice)), total=len(plans), desc=f"{dataset}: images", disable=None
        )
        for index, ((first, _), data) in enumerate(zip(plans, files, strict=True)):
            label = int(labels[first])
            stage.add("train", classes[label], f"{index:06d}.jpg", label, data, shape)
            size += len(data)
        source = {**asdict(choice), "bytes_per_pixel": size / (choice.count * choice.size**2)}
        info = DatasetInfo(dataset, "mosaic", classes, "test", tiles.info.mean, tiles.info.std, source=source)
        return stage.finish(info)


def processes(options: Options) -> int:
    """Return how many processes encode: one for each 0.5 s of work, at most one a core."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 1 + options.count * options.size**2 // 2**24)


def tiles_of(archives: list[Path], options: Options) -> Manifest:
    """Return the manifest that the tiles come from; raise GpufeedError if its images differ in size."""
    manifest = only_manifest(archives, "mosaic", options.of)
    manifest.image_size()
    return manifest


def colour_ids(tiles: Manifest) -> np.ndarray:
    """Return the ids of the training images in colour, int64 (n,); raise GpufeedError if there is none."""
    ids = tiles.ids("train")
    ids = ids[tiles.table["channels"].to_numpy()[ids] == 3]
    if not len(ids):
        raise GpufeedError(
            f"no colour image in {tiles.info.dataset}", "at least one", "name another dataset under `of`"
        )
    return ids


def plan(index: int, tiles: Manifest, colour: np.ndarray, options: Options) -> tuple[int, list[Tile]]:
    """Return (sample id of the first tile, all tiles) of mosaic `index`; colour: ids that may be drawn."""
    random = np.random.default_rng([options.seed, index])
    height, width = tiles.image_size()
    top = int(random.integers(max(0, height - options.size) + 1))
    left = int(random.integers(max(0, width - options.size) + 1))
    corners = [(r, c) for r in range(0, options.size, height) for c in range(0, options.size, width)]
    chosen = random.choice(colour, len(corners)).tolist()
    paths, folder = tiles.table["path"], tiles.files_root()
    drawn = [
        Tile(folder / paths.iat[id], top, left, row, column)
        for id, (row, column) in zip(chosen, corners, strict=True)
    ]
    return chosen[0], drawn


def encode(tiles: list[Tile], options: Options) -> bytes:
    """Return the tiles as one JPEG file, cut off at its lower and right edge."""
    pixels = np.empty((options.size, options.size, 3), np.uint8)
    for tile in tiles:
        with Image.open(tile.file) as image:
            part = np.asarray(image.convert("RGB"))[tile.top :, tile.left :]
        room = pixels[tile.row : tile.row + part.shape[0], tile.column : tile.column + part.shape[1]]
        room[...] = part[: room.shape[0], : room.shape[1]]
    return jpeg(pixels, options.quality)
