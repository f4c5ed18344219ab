"""The reference of loaders that crop windows: a recipe applied to the files by Pillow."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from gpufeed.augment.random_resized_crop import RandomResizedCrop
from gpufeed.benchmarks.equivalence.epoch_check import Reference
from gpufeed.core.references import is_reference
from gpufeed.decoders.encoded_file import read_file
from gpufeed.decoders.pillow import PillowDecoder, resized
from gpufeed.loaders.base import Loader, LoadRequest
from gpufeed.loaders.host_crops import decoded_alone, reduction
from gpufeed.loaders.pixel_tolerance import PixelSource
from gpufeed.stores.scaled_cache import ScaledImages, short_side_of
from gpufeed.system import random_draws

MOST = 2048  # samples whose pixels are compared in an epoch, different ones in each


@dataclass(frozen=True)
class SampledReference(Reference):
    """A reference of which only a share of the samples is compared by pixels."""

    share: float

    def compared(self, ids: np.ndarray, epoch: int) -> np.ndarray:
        draws = random_draws.draw(random_draws.sample_state(0, epoch, ids), 0)
        return np.flatnonzero(random_draws.chance(draws, self.share))


@dataclass(frozen=True)
class CropReference(SampledReference):
    """recipe: of the loader under test. sizes: int64 (N, 2), height and width of each file."""

    recipe: RandomResizedCrop
    sizes: np.ndarray

    def allowed(self, source: PixelSource, ids: np.ndarray, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        of = source.reduced or source.tolerance
        fractions = [self._is_reduced(sample_id, epoch) for sample_id in ids.tolist()]
        bounds = [
            (of.max, of.mean) if one else (source.tolerance.max, source.tolerance.mean) for one in fractions
        ]
        largest, mean = zip(*bounds, strict=True) if bounds else ((), ())
        return np.array(largest), np.array(mean)

    def _is_reduced(self, sample_id: int, epoch: int) -> bool:
        return reduction(self.recipe.window(sample_id, epoch, *self.sizes[sample_id].tolist())) > 1


def crop_reference(
    request: LoadRequest, loader: Loader, labels: np.ndarray, paths: list[str]
) -> CropReference:
    """Return the reference for a request with a recipe; rows are made on the request's threads.

    loader: made for the request.
    """
    manifest, recipe = request.manifest, request.recipe
    files, sizes, pillow = manifest.paths(), manifest.sizes(), PillowDecoder()

    short_side = short_side_of(request.cache) if request.cache else None
    scaled = ScaledImages.of(manifest, short_side) if short_side else None

    def row(sample_id: int, epoch: int) -> np.ndarray:
        if manifest.made:
            image = manifest.pixels(sample_id, request.seed, epoch)
        else:
            image = decoded_alone(pillow, read_file(str(files[sample_id])), files[sample_id])
        image, window = loader.reference_cut(recipe, sample_id, epoch, image)
        if scaled is not None:
            _, size = scaled.place(sample_id)
            image, window = resized(image, size), window.scaled(image.shape[:2], size)
        return recipe.cut(image, window)

    def rows(ids: np.ndarray, epoch: int) -> np.ndarray:
        # a Dataset draws from generators that all threads share
        draws = manifest.made and is_reference(manifest.info.layout)
        with ThreadPoolExecutor(1 if draws else request.threads) as pool:
            made = list(pool.map(lambda sample_id: row(sample_id, epoch), ids.tolist()))
        return np.stack(made) if made else np.empty((0, recipe.size, recipe.size, 3), np.uint8)

    shape = (recipe.size, recipe.size, 3)
    return CropReference(shape, rows, labels, paths, share_of(request), recipe, sizes)


def share_of(request: LoadRequest) -> float:
    """Return the share of a split whose pixels are compared."""
    return min(1.0, MOST / len(request.manifest.ids(request.split)))


def dataset_reference(request: LoadRequest, labels: np.ndarray, paths: list[str]) -> SampledReference:
    """Return the reference for a Dataset by reference: its items, read one after the other."""

    def rows(ids: np.ndarray, epoch: int) -> np.ndarray:
        made = [request.manifest.pixels(sample_id, request.seed, epoch) for sample_id in ids.tolist()]
        return np.stack(made) if made else np.empty((0, *shape), np.uint8)

    shape = (*request.image_size, 3)
    return SampledReference(shape, rows, labels, paths, share_of(request))
