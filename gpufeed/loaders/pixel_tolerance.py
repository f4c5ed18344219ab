"""Whose pixels a loader yields, and how far they may be from Pillow's."""

from dataclasses import dataclass
from functools import cache as kept
from pathlib import Path

from gpufeed.core.registry import LOADERS, load
from gpufeed.decoders.base import Decoder, Tolerance
from gpufeed.loaders.base import Loader
from gpufeed.stores.cache_format import read_info

DATALOADER_DECODER = "pillow"  # of loaders/samples.py


@dataclass(frozen=True)
class PixelSource:
    """A decoder by name, its library's version, and its tolerance."""

    decoder: str
    version: str
    tolerance: Tolerance


def pixel_source(name: str, loader: Loader, cache: Path | None) -> PixelSource:
    """Who decoded what the registered loader `name` yields; `loader` is open.

    A reader of a cache: the decoder that its sidecar names, held to the tolerance that stands there. Any
    other: the loader's attribute `decoder` (a name in the registry, or what has name, version and tolerance
    as a decoder does), without which it decodes as the DataLoader does.
    """
    if LOADERS[name].decoded:
        info = read_info(cache)
        tolerance = info.tolerance or load("decoder", info.decoder).tolerance
        return PixelSource(info.decoder, info.decoder_version, tolerance)
    made = getattr(loader, "library", None)  # a streaming loader has its decoder at hand
    decoder = made or getattr(loader, "decoder", DATALOADER_DECODER)
    return of_decoder(decoder) if isinstance(decoder, str) else of_made(decoder)


@kept  # a decoder of the GPU takes a second to set up
def of_decoder(name: str) -> PixelSource:
    """That of a registered decoder; raises Skip if this node lacks it."""
    return of_made(load("decoder", name)())


def of_made(decoder: Decoder) -> PixelSource:
    return PixelSource(decoder.name, decoder.version(), decoder.tolerance)
