"""A dataset that lives on the device, a thin front of the cache and of what `resident` does.

data = GPUOnlyDataset("data/tiny_imagenet/manifest.parquet", use_gpu_decode=True)
for images, labels in data.batches(256, seed=epoch):
    ...
"""

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from gpufeed.cache import build_or_fall_back, info_path, open_cache
from gpufeed.cache.fill import decoder
from gpufeed.data.building import one_builder
from gpufeed.data.manifest import Manifest
from gpufeed.devices import resolve_device
from gpufeed.environment import cores_allowed
from gpufeed.errors import GpufeedError, Skip
from gpufeed.loaders.base import LoadRequest
from gpufeed.loaders.order import permutation
from gpufeed.loaders.resident import check_room, copy_rows, free_bytes

GPU_DECODER, CPU_DECODER = "dali_gpu", "simplejpeg"
DRAW = 0  # seed of the samples that max_samples leaves

log = logging.getLogger("gpufeed")


class GPUOnlyDataset(Dataset):
    """One split of a dataset, decoded once and held on the device as uint8.

    images: uint8 (n, C, H, W) in channels-last memory; labels: int64 (n,); ids: the samples' ids in the
    manifest, int64 (n,) on the host, ascending; cache: the file that the pixels come from.
    """

    def __init__(
        self,
        manifest: Manifest | str | Path,
        use_gpu_decode: bool = True,
        max_samples: int | None = None,
        split: str = "train",
        device: torch.device | str | None = None,
        workers: int | None = None,
    ):
        """Opens the dataset's cache, or builds it first; then copies the split to the device.

        manifest: of a prepared dataset, or the path of one. use_gpu_decode: which decoder builds a cache
        that is missing or of another manifest, dali_gpu or simplejpeg; where the node cannot run it, the
        log says who builds instead. The cache holds all splits, whatever is asked for here; of several
        processes that lack it, one builds. max_samples:
        a random draw of the split, always the same one, instead of all of it. device: None takes the GPU,
        and without one the CPU, which the log says. workers: cores that may decode; None takes all.

        Raises GpufeedError for max_samples below 1, an unknown split, a device that the node lacks, a set
        that does not fit into its memory, and as gpufeed.cache.build does.
        """
        if max_samples is not None and max_samples < 1:
            raise GpufeedError(f"max_samples {max_samples}", "1 or more, or None", "leave it out to take all")
        self.manifest = manifest if isinstance(manifest, Manifest) else Manifest.read(manifest)
        self.device = pick_device(device)
        self.ids = draw(self.manifest.ids(split), max_samples)
        self.cache = self.manifest.root / "cache" / f"{GPU_DECODER if use_gpu_decode else CPU_DECODER}.npy"
        rows = open_or_build(self.manifest, self.cache, workers or cores_allowed())
        request = LoadRequest(self.manifest, split, 1, self.device, cache=self.cache)
        check_room(len(self.ids) * int(np.prod(rows.shape[1:])), free_bytes(self.device), request)
        self.images = copy_rows(rows, self.ids, self.device).permute(0, 3, 1, 2)
        self.labels = torch.from_numpy(self.manifest.labels()[self.ids]).to(self.device)

    @property
    def classes(self) -> list[str]:
        """The name of each label."""
        return self.manifest.info.classes

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(uint8 (C, H, W), int64 ()) on the device: views, so that one sample costs no copy."""
        return self.images[index], self.labels[index]

    def batches(
        self, batch_size: int, shuffle: bool = True, seed: int = 0
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """One epoch of (uint8 (N, C, H, W), int64 (N,)), gathered on the device; the last may be smaller.

        seed: give each epoch its own. Raises GpufeedError for a batch size below 1.
        """
        if batch_size < 1:
            raise GpufeedError(f"batch size {batch_size}", "1 or more", "ask for at least one image a batch")
        everyone = torch.arange(len(self), device=self.device)
        order = permutation(len(self), seed, 0, self.device) if shuffle else everyone
        for chosen in order.split(batch_size):
            # gathered as (N, H, W, C), which is how they lie in memory
            images = self.images.permute(0, 2, 3, 1).index_select(0, chosen)
            yield images.permute(0, 3, 1, 2), self.labels.index_select(0, chosen)


def pick_device(device: torch.device | str | None) -> torch.device:
    """The device asked for, or for None the GPU or else the CPU; raises GpufeedError if there is none."""
    if device is None:
        found = resolve_device("cuda" if torch.cuda.is_available() else "cpu")
        if found.type == "cpu":
            log.warning(
                "torch %s finds no CUDA GPU here: the CPU's memory holds the images.", torch.__version__
            )
        return found
    try:
        asked = torch.device(device)
        found = resolve_device(asked.type)
    except (RuntimeError, Skip) as error:  # RuntimeError: torch knows no such name
        raise GpufeedError(
            f"device {str(device)!r} ({error})",
            "a device of this node",
            "leave `device` out to take what there is",
        ) from error
    return found if asked.index is None else asked


def draw(ids: np.ndarray, most: int | None) -> np.ndarray:
    """At most `most` of the ids, drawn at random but always the same ones, ascending."""
    if most is None or most >= len(ids):
        return ids
    return np.sort(np.random.default_rng(DRAW).choice(ids, most, replace=False))


def open_or_build(manifest: Manifest, path: Path, workers: int) -> np.memmap:
    """The cache's pixels, uint8 (N, H, W, 3); built first if there is none of this manifest.

    Of several processes that find none, as those of torchrun do, one builds and the others wait for it.
    """
    if (rows := opened(manifest, path)) is not None:
        return rows
    with one_builder(path):
        if (rows := opened(manifest, path)) is None:
            build_or_fall_back(manifest, path.stem, path, workers)
            decoder.cache_clear()  # gives the device memory of a GPU decoder back
            rows = open_cache(path, manifest)
        return rows


def opened(manifest: Manifest, path: Path) -> np.memmap | None:
    """The cache's pixels if there is a finished cache of this manifest."""
    if not info_path(path).exists():
        return None
    try:
        return open_cache(path, manifest)
    except GpufeedError as error:
        log.info("the cache cannot be used: %s", error.found)
        return None
