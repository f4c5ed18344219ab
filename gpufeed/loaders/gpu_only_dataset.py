"""A dataset that is decoded once and stays on the device, built on the decoded cache and loader `resident`.

data = GPUOnlyDataset("photos", max_samples=10_000, image_size=(224, 224), dtype=torch.float16)
for images, labels in data.batches(256, seed=epoch):
    ...
"""

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from gpufeed.augment.base import Normalise
from gpufeed.core.cells import DEVICES
from gpufeed.core.config import check_axes
from gpufeed.core.errors import GpufeedError, Skip, require_known
from gpufeed.core.folders import expanded
from gpufeed.datasets import image_folder
from gpufeed.datasets.manifest import Manifest
from gpufeed.loaders.base import permutation
from gpufeed.loaders.resident import SHARE_OF_FREE, copy_rows, free_bytes
from gpufeed.stores.base import info_path, manifest_digest
from gpufeed.stores.cache_fill import decoder
from gpufeed.stores.cache_format import CacheInfo, open_cache
from gpufeed.stores.decoded_cache import able, build, check_share
from gpufeed.system.build_once import one_builder
from gpufeed.system.devices import resolve_device
from gpufeed.system.environment import cores_allowed

GPU_DECODER, CPU_DECODER = "dali_gpu", "simplejpeg"
DRAW = 0  # seed for the draw of max_samples
QUARANTINED_SHARE = 0.001  # as max_quarantined_share in config/config.yaml
DTYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32)
# GPU memory that dali_gpu needs to decode: 434 MiB with small files (docs/lab/decoding.md), and a call of
# gpufeed.stores.cache_fill decodes up to 256 MiB of large ones.
DECODING_BYTES = 2**30

log = logging.getLogger("gpufeed")


class GPUOnlyDataset(Dataset):
    """One split of a dataset, decoded once and held on the device as uint8.

    Items (C, H, W) and batches (N, C, H, W) are converted to `dtype` on access.

    images: uint8 (n, C, H, W) in channels-last memory; labels: int64 (n,); ids: the samples' ids in the
    manifest, int64 (n,) on the host, ascending; cache: the file that holds the pixels, named after the
    decoder that built it; quarantined: [{"path", "reason"}] of the files that could not be decoded.
    """

    def __init__(
        self,
        source: Manifest | str | Path,
        use_gpu_decode: bool = True,
        max_samples: int | None = None,
        split: str = "train",
        device: torch.device | str | None = None,
        workers: int | None = None,
        *,
        image_size: tuple[int, int] | None = None,
        dtype: torch.dtype = torch.uint8,
        normalise: bool = True,
        max_quarantined_share: float = QUARANTINED_SHARE,
        cache_folder: str | Path | None = None,
    ):
        """Open the cache, or build it first; then copy the samples to the device.

        source: a manifest, its path or its folder, or a plain folder of images
        (gpufeed.datasets.image_folder). use_gpu_decode: build a missing or outdated cache with dali_gpu
        (True) or simplejpeg (False). If the node cannot run that decoder, another one builds, and the log
        names it. Of several processes that lack a cache, one builds it. max_samples: use a random subset of
        the split, always the same one; no other image is decoded. Without it the cache holds all splits.
        device: by default the GPU, or the CPU if there is none, which is logged. workers: cores that may
        decode, by default all.

        image_size: (height, width) to which images are resized; None keeps their size. dtype: of items and
        batches. normalise: by the dataset's mean and standard deviation (ImageNet's for a plain folder);
        False returns floats from 0 to 1; uint8 is 0 to 255 either way. max_quarantined_share: share of the
        decoded files of a plain folder that may be broken; these are left out and not replaced.
        cache_folder: by default `cache` beside a manifest, and NAME-cache beside a plain folder.

        Raises GpufeedError for impossible options, an unknown split, a device that the node lacks, a set that
        does not fit into memory (before anything is decoded), and as gpufeed.stores.decoded_cache.build does.
        """
        check_options(max_samples, image_size, dtype, max_quarantined_share)
        check_axes({}, "GPUOnlyDataset", workers=workers)
        self.manifest = manifest_of(source)
        self.device, self.dtype = pick_device(device), dtype
        self.ids = draw(self.manifest.ids(split), max_samples)
        info, plain = self.manifest.info, self.manifest.info.layout == image_folder.IN_PLACE
        mean, std = (info.mean, info.std) if normalise else ((0.0,) * 3, (1.0,) * 3)
        self._normalise = Normalise(mean, std, 0, {}).normalise
        beside = Path(os.path.abspath(self.manifest.root))
        beside = beside.with_name(f"{beside.name}-cache") if plain else beside / "cache"
        pixels = Pixels(
            Path(cache_folder) if cache_folder else beside,
            self.manifest,
            self.ids,
            len(self.ids) < len(self.manifest.ids(split)),
            image_size,
        )
        asked = GPU_DECODER if use_gpu_decode else CPU_DECODER
        found = pixels.find(asked)
        buffers = DECODING_BYTES if found is None and use_gpu_decode and self.device.type == "cuda" else 0
        check_room(len(self.ids), pixels.chosen.image_size(), self.device, buffers)
        if found is None:
            share = max_quarantined_share if plain else None
            cores = cores_allowed() if workers in (None, 0, "auto") else workers
            found = pixels.build(asked, cores, share)
        self.cache, about = found.path, CacheInfo.read(found.path)
        self.quarantined = about.quarantined
        check_share(self.quarantined, about.count, max_quarantined_share)
        whole = ~self.manifest.table["path"].iloc[self.ids].isin([one["path"] for one in self.quarantined])
        self.ids = self.ids[whole.to_numpy()]
        self._rows = copy_rows(found.rows, found.places[whole.to_numpy()], self.device)  # (n, H, W, C)
        self.images = self._rows.permute(0, 3, 1, 2)
        self.labels = torch.from_numpy(self.manifest.labels()[self.ids]).to(self.device)
        for one in self.quarantined:
            log.warning("quarantined %s: %s", one["path"], one["reason"])
        log.info("%d images on %s from %s, decoded by %s", len(self), self.device, self.cache, about.decoder)

    @property
    def classes(self) -> list[str]:
        """Return the name of each label."""
        return self.manifest.info.classes

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int | slice | Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (C, H, W) and int64 () on the device, or (N, C, H, W) and int64 (N,) for a slice or a list.

        With dtype uint8 a number or a slice returns views, without a copy.
        """
        self._no_worker()
        if isinstance(index, slice) and (index.step is None or index.step > 0):
            return self._made(self._rows[index]), self.labels[index]
        if isinstance(index, slice):  # torch has no negative steps
            index = range(*index.indices(len(self)))
        elif not np.ndim(index):
            place = range(len(self))[index]  # negative ones count from the end; IndexError
            return self._made(self._rows[place : place + 1])[0], self.labels[place]
        return self._gathered(self._places(index))

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the samples of a DataLoader's batch, gathered and normalised together."""
        images, labels = self[indices]
        return list(zip(images.unbind(), labels.unbind(), strict=True))

    def batches(
        self, batch_size: int, shuffle: bool = True, seed: int = 0
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the batches of one epoch, (N, C, H, W) and int64 (N,), gathered on the device.

        The last batch may be smaller. seed: use another one for each epoch. Raises GpufeedError for a batch
        size below 1.
        """
        if batch_size < 1:
            raise GpufeedError(f"batch size {batch_size}", "1 or more", "ask for at least one image a batch")
        everyone = torch.arange(len(self), device=self.device)
        order = permutation(len(self), seed, 0, self.device) if shuffle else everyone
        for chosen in order.split(batch_size):
            yield self._gathered(chosen)

    def _gathered(self, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._made(self._rows.index_select(0, places)), self.labels.index_select(0, places)

    def _made(self, rows: torch.Tensor) -> torch.Tensor:
        """Convert uint8 (N, H, W, C) to (N, C, H, W) of `dtype`."""
        return rows.permute(0, 3, 1, 2) if self.dtype == torch.uint8 else self._normalise(rows).to(self.dtype)

    def _places(self, indices: Sequence[int]) -> torch.Tensor:
        """Check indices on the host and copy them; one out of range would break the GPU's CUDA context."""
        places, count = torch.as_tensor(indices), len(self)
        if not places.numel():
            return torch.zeros(0, dtype=torch.int64, device=self.device)
        if places.is_floating_point() or places.dtype == torch.bool:
            raise TypeError(f"indices of type {places.dtype}: whole numbers are expected")
        if places.min() < -count or places.max() >= count:
            raise IndexError(f"indices from {places.min()} to {places.max()} of {count} samples")
        return (places.to(torch.int64) % count).to(self.device)

    def _no_worker(self) -> None:
        if self.device.type == "cuda" and get_worker_info() is not None:
            raise GpufeedError(
                "a DataLoader's worker process, which cannot use the images on the GPU",
                "num_workers=0",
                "set num_workers=0 in the DataLoader: there is no work left for workers",
            )


class Found(NamedTuple):
    """A cache: its file, its pixels, and the rows of the wanted samples."""

    path: Path
    rows: np.ndarray  # uint8 (N, H, W, 3)
    places: np.ndarray  # int64 (n,)


class Pixels:
    """A cache, present or to be built, of the whole set or of some samples alone.

    Its files are DECODER[-HEIGHTxWIDTH][-COUNT-DIGEST].npy: with the size if it is not the manifest's, with
    count and digest (of the samples, their files and the size) if samples are left out.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        ids: np.ndarray,
        cut: bool,
        image_size: tuple[int, int] | None,
    ):
        """Name the cache. cut: whether the ids are only a part of their split; then only they are decoded."""
        self.folder, self.manifest, self.ids, self.cut = folder, manifest, ids, cut
        some = manifest.table.iloc[ids].reset_index(drop=True)
        part = Manifest(manifest.root, manifest.info, some) if cut else manifest
        self.chosen = sized(part, image_size)
        height, width = self.size = self.chosen.image_size()
        self.suffix = f"-{height}x{width}" if self.chosen.info.resize != manifest.info.resize else ""

    def path(self, decoder_name: str) -> Path:
        own = f"-{len(self.ids)}-{manifest_digest(self.chosen)[:12]}" if self.cut else ""
        return self.folder / f"{decoder_name}{self.suffix}{own}.npy"

    def find(self, decoder_name: str) -> Found | None:
        """Return a finished cache under a decoder's name, preferably of the whole set."""
        whole = self.folder / f"{decoder_name}{self.suffix}.npy"
        if self.cut and info_path(whole).exists():
            rows = opened(sized(self.manifest, self.size), whole)
            if rows is not None:
                return Found(whole, rows, self.ids)
        path = self.path(decoder_name)
        rows = opened(self.chosen, path)
        return None if rows is None else Found(path, rows, np.arange(len(self.ids)) if self.cut else self.ids)

    def build(self, asked: str, workers: int, share: float | None) -> Found:
        """Build the cache, named after the decoder that runs. share: max_quarantined_share of `build`.

        Of several processes without a cache, such as those of torchrun, one builds and the others wait.
        """
        name, because = able(asked, workers, self.chosen.info.resize)
        path = self.path(name)
        if because and (found := self.find(name)) is not None:
            return found
        check_writable(self.folder)
        instead_of = asked if because else None
        with one_builder(path):
            try:
                if (found := self.find(name)) is None:
                    build(self.chosen, name, path, workers, instead_of, because, max_quarantined_share=share)
                    found = self.find(name)
            finally:
                decoder.cache_clear()  # frees the device memory of a GPU decoder
        return found


def check_options(
    max_samples: int | None, image_size: tuple[int, int] | None, dtype: torch.dtype, share: float
) -> None:
    """Raise GpufeedError for an impossible option."""
    if max_samples is not None and (not isinstance(max_samples, int | np.integer) or max_samples < 1):
        raise GpufeedError(f"max_samples {max_samples}", "1 or more, or None", "leave it out to use all")
    if image_size is not None and not (
        isinstance(image_size, tuple | list)
        and len(image_size) == 2
        and all(isinstance(side, int) and side >= 1 for side in image_size)
    ):
        raise GpufeedError(
            f"image_size {image_size!r}", "(height, width) in pixels", "such as image_size=(224, 224)"
        )
    if dtype not in DTYPES:
        raise GpufeedError(f"dtype {dtype}", f"one of: {', '.join(map(str, DTYPES))}", "choose one of them")
    if not 0 <= share < 1:
        raise GpufeedError(
            f"max_quarantined_share {share}", "a share from 0 to below 1", "such as 0.01 for one in a hundred"
        )


def manifest_of(source: Manifest | str | Path) -> Manifest:
    """Return the manifest itself, the one at a path or in a folder, or a new one for a plain folder."""
    if isinstance(source, Manifest):
        return source
    path = expanded(source)
    if not path.exists():
        raise GpufeedError(f"no {path}", "a manifest.parquet, or a folder of images", "correct the path")
    if not path.is_dir():
        return Manifest.read(path)
    own = path / "manifest.parquet"
    return Manifest.read(own) if own.exists() else image_folder.manifest_in_place(path)


def sized(manifest: Manifest, image_size: tuple[int, int] | None) -> Manifest:
    """Return the manifest with images of one size: `image_size`, or for None their own.

    Raises GpufeedError if they have several.
    """
    if plain := manifest.info.layout == image_folder.IN_PLACE:
        manifest = image_folder.read_headers(manifest)
    table = manifest.table
    whole = Manifest(manifest.root, manifest.info, table[table["height"] > 0] if plain else table)
    own = None
    if image_size is None or not plain:
        try:
            own = whole.image_size()
        except GpufeedError as error:
            if image_size is None:
                raise GpufeedError(error.found, error.expected, "set image_size=(height, width)") from error
    size = own if image_size is None else tuple(image_size)
    if size == own and not plain:
        return manifest
    return Manifest(manifest.root, replace(manifest.info, resize=size), table)


def check_room(count: int, size: tuple[int, int], device: torch.device, buffers: int) -> None:
    """Raise GpufeedError unless the images and the decoder's buffers fit, with some memory to spare."""
    free, each = free_bytes(device), size[0] * size[1] * 3 + 8  # and an int64 label
    needed, most = count * each + buffers, int(SHARE_OF_FREE * free)
    if needed <= most:
        return
    fits = (most - buffers) // each
    decoding = f" and {buffers / 2**30:.2f} GiB to decode" if buffers else ""
    raise GpufeedError(
        f"{count * each / 2**30:.2f} GiB for {count:,} images of {size[0]} x {size[1]}{decoding}, "
        f"{free / 2**30:.2f} GiB free on {device}",
        f"at most {SHARE_OF_FREE:.0%} of the free memory",
        (f"set max_samples={fits}, which fits, or " if fits > 0 else "choose ")
        + "a smaller image_size, or a device with more memory",
    )


def check_writable(folder: Path) -> None:
    """Make a folder; raise GpufeedError if it cannot be made or written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        why = None if os.access(folder, os.W_OK) else "you may not write to it"
    except OSError as error:
        why = error.strerror
    if why:
        raise GpufeedError(
            f"{folder}: {why}",
            "a folder for the decoded images that you may write to",
            "set cache_folder=FOLDER",
        )


def pick_device(device: torch.device | str | None) -> torch.device:
    """Return the given device, or for None the GPU or else the CPU; raise GpufeedError if there is none."""
    if device is None:
        found = resolve_device("cuda" if torch.cuda.is_available() else "cpu")
        if found.type == "cpu":
            log.warning(
                "torch %s finds no CUDA GPU here: the CPU's memory holds the images.", torch.__version__
            )
        return found
    try:
        asked = torch.device(device)
        require_known("device", asked.type, DEVICES[1:], "the call")  # `auto` is no device
        found = resolve_device(asked.type)
    except (RuntimeError, Skip) as error:  # RuntimeError: an unknown name
        raise GpufeedError(
            f"device {str(device)!r} ({error})",
            "a device of this node",
            "leave `device` out to use the device that there is",
        ) from error
    return found if asked.index is None else asked


def draw(ids: np.ndarray, most: int | None) -> np.ndarray:
    """Draw at most `most` of the ids, always the same ones; return them ascending."""
    if most is None or most >= len(ids):
        return ids
    return np.sort(np.random.default_rng(DRAW).choice(ids, most, replace=False))


def opened(manifest: Manifest, path: Path) -> np.memmap | None:
    """Return the cache's pixels if there is a finished cache of this manifest."""
    if not info_path(path).exists():
        return None
    try:
        return open_cache(path, manifest)
    except GpufeedError as error:
        log.info("the cache cannot be used: %s", error.found)
        return None
