"""The decoder of a loader's pixels, and how far they may be from Pillow's."""

from dataclasses import dataclass, replace
from functools import cache as kept
from pathlib import Path

from gpufeed.core.registry import LOADERS, load
from gpufeed.decoders.base import Decoder, Tolerance
from gpufeed.loaders.base import Loader
from gpufeed.stores.cache_format import CacheInfo

DATALOADER_DECODER = "pillow"  # of loaders/samples.py
# An image that libjpeg decodes at a reduced size: 24 photographs, each resized to 224 pixels, differed by up
# to 49, 4.1 in the mean over an image, from the full decode.
REDUCED = Tolerance(96, 8.0)


@dataclass(frozen=True)
class PixelSource:
    """A decoder by name, its library's version, and its tolerance."""

    decoder: str
    version: str
    tolerance: Tolerance
    reduced: Tolerance | None = None  # for images decoded at a reduced size; None: as for all


def pixel_source(name: str, loader: Loader, cache: Path | None) -> PixelSource:
    """Return the source of the pixels that the registered loader `name` yields; `loader` is open.

    For a reader of a cache: the decoder and tolerance in the cache's sidecar. For any other: the loader's
    attribute `decoder` (a registered name, or an object with name, version and tolerance), by default the
    DataLoader's.
    """
    source, request = of_whole_images(name, loader, cache), getattr(loader, "request", None)
    if request is None or request.recipe is None:
        return source
    tolerance = source.tolerance.then(loader.resampling)
    reduced = tolerance.then(REDUCED) if reduces(name, loader) else None
    return replace(source, tolerance=tolerance, reduced=reduced)


def reduces(name: str, loader: Loader) -> bool:
    """Return whether a loader's decoder decodes large images at a reduced size."""
    if not LOADERS[name].decoders:
        return False
    return load("decoder", loader.request.decoder).decode_reduced is not Decoder.decode_reduced


def of_whole_images(name: str, loader: Loader, cache: Path | None) -> PixelSource:
    """Return the pixel source of a loader, for whole images."""
    if LOADERS[name].decoded:
        info = CacheInfo.read(cache)
        tolerance = info.tolerance or load("decoder", info.decoder).tolerance
        return PixelSource(info.decoder, info.decoder_version, tolerance)
    made = getattr(loader, "library", None)  # a streaming loader has an open decoder
    chosen = loader.request.decoder if LOADERS[name].decoders else DATALOADER_DECODER
    decoder = made or getattr(loader, "decoder", chosen)
    return of_decoder(decoder) if isinstance(decoder, str) else of_made(decoder)


@kept  # a decoder of the GPU takes a second to set up
def of_decoder(name: str) -> PixelSource:
    """Return the pixel source of a registered decoder; raise Skip if this node lacks it."""
    return of_made(load("decoder", name)())


def of_made(decoder: Decoder) -> PixelSource:
    return PixelSource(decoder.name, decoder.version(), decoder.tolerance)
