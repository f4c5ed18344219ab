"""Crop samples of a recipe from a cache of scaled images, and resize them on the device.

A window is drawn for the original image and read from the scaled one, at the same relative place.
"""

import numpy as np
import torch

from gpufeed.augment.random_resized_crop import Windows
from gpufeed.augment.resample import prepare, resample
from gpufeed.decoders.ragged import Ragged
from gpufeed.loaders.base import LoadRequest, empty_batch, upload
from gpufeed.stores.scaled_cache import open_scaled
from gpufeed.system.timing import Span

CHUNK_BYTES = 64 * 2**20  # of the cache that are copied at once
CPU = torch.device("cpu")


class ScaledCrops:
    """The images of a request's split; row i is the i-th of Manifest.ids."""

    def __init__(self, request: LoadRequest):
        """Raise Skip if the request's device cannot resize."""
        prepare(request.device, request.recipe.size)
        self.request, self.recipe = request, request.recipe
        ids = request.manifest.ids(request.split)
        self.pixels, images = open_scaled(request.cache, request.manifest)  # uint8 (bytes,)
        self.original = request.manifest.sizes()[ids].T.copy()  # (2, n): heights, widths
        self.scaled = np.stack([images.heights[ids], images.widths[ids]])
        self.starts, self.sizes = images.offsets[ids], 3 * self.scaled.prod(axis=0)  # in `pixels`, bytes

    @property
    def bytes(self) -> int:
        """Bytes of all images of the split."""
        return int(self.sizes.sum())

    def copy_to(self, flat: torch.Tensor) -> None:
        """Copy the split's images, end to end, to uint8 (bytes,) on any device, a chunk at a time."""
        ends = np.cumsum(self.sizes)
        starts, first = ends - self.sizes, 0
        while first < len(starts):
            last = max(first + 1, int(np.searchsorted(ends, starts[first] + CHUNK_BYTES, side="right")))
            places = zip(self.starts[first:last], self.sizes[first:last], strict=True)
            chunk = np.concatenate([self.pixels[place : place + size] for place, size in places])
            flat[starts[first] : ends[last - 1]].copy_(torch.from_numpy(chunk))
            first = last
        self.starts = starts


class DeviceCacheCrops(ScaledCrops):
    """All images in the device's memory."""

    def load(self) -> None:
        """Copy the images to the device."""
        device = self.request.device
        flat = torch.empty(self.bytes, dtype=torch.uint8, device=device)
        self.copy_to(flat)
        starts, self.sides, scaled = (
            torch.from_numpy(values).to(device) for values in (self.starts, self.original, self.scaled)
        )
        self.images, self.pixels = Ragged(flat, starts, *scaled), None

    def samples(self, rows: torch.Tensor, ids: torch.Tensor, epoch: int) -> torch.Tensor:
        """Return the samples of these rows, uint8 (n, size, size, 3). rows, ids: int64 (n,) on the device."""
        images, sides = self.images.select(rows), self.sides[:, rows].unbind()
        windows = self.recipe.windows(ids, epoch, *sides).scaled(sides, (images.heights, images.widths))
        return resample(images, windows, self.recipe.size)


class HostCacheCrops(ScaledCrops):
    """All images in the host's memory, or in their file."""

    def load(self) -> None:
        """Copy the images into memory."""
        flat = torch.empty(self.bytes, dtype=torch.uint8)
        self.copy_to(flat)
        self.pixels = flat.numpy()

    def samples(self, rows: np.ndarray, ids: np.ndarray, epoch: int) -> tuple[torch.Tensor, Span | None]:
        """Return the samples of rows on the host, and the span of their copy to the device."""
        sides, scaled = (torch.from_numpy(of[:, rows]).unbind() for of in (self.original, self.scaled))
        windows = self.recipe.windows(torch.from_numpy(ids), epoch, *sides).scaled(sides, scaled)
        images, windows = self._bands(rows, scaled, windows)
        flat, transfer = upload(images.flat, self.request.device)
        images = Ragged(flat, images.offsets, images.heights, images.widths)
        return resample(images, windows, self.recipe.size), transfer

    def _bands(
        self, rows: np.ndarray, scaled: tuple[torch.Tensor, ...], windows: Windows
    ) -> tuple[Ragged, Windows]:
        """Copy the pixel rows that windows cover to a (pinned) buffer; return them and the windows there."""
        heights, widths = scaled
        top = windows.top.floor().to(torch.int64)
        bottom = torch.minimum((windows.top + windows.height).ceil().to(torch.int64), heights)
        sizes = 3 * widths * (bottom - top)
        places = sizes.cumsum(0) - sizes
        flat = empty_batch((int(sizes.sum()),), torch.uint8, CPU, self.request)
        out, begins = flat.numpy(), torch.from_numpy(self.starts[rows]) + 3 * widths * top
        for place, begin, size in zip(places.tolist(), begins.tolist(), sizes.tolist(), strict=True):
            out[place : place + size] = self.pixels[begin : begin + size]
        return Ragged(flat, places, bottom - top, widths), windows.below(top)
