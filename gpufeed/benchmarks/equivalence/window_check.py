"""Checks that a library draws its random windows from our distribution, by comparing two samples.

The library crops images whose colours are their coordinates, which tells its windows. Our rule draws windows
of the same images. Five measures of a window are compared, each by the two-sample Kolmogorov-Smirnov test,
which holds for any distribution. Values are rounded to whole pixels, as in both rules, so that errors below
half a pixel do not matter.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch

from gpufeed.augment.random_resized_crop import RandomResizedCrop
from gpufeed.core.registry import LOADERS, STORES, load
from gpufeed.datasets.manifest import DatasetInfo, Manifest
from gpufeed.datasets.staging import jpeg
from gpufeed.loaders.base import LoadRequest, make_loader

COUNT = 10_000  # windows of the library
OURS = 10  # times as many windows of our rule, always the same: they add little noise
SIZES = ((160, 320), (320, 160), (200, 300), (240, 240), (320, 240), (300, 320))  # (height, width)
SHARES = (0.5, 0.5, 0.5)  # mean and deviation of colours, unused here
TIMES = 64  # copies of each image, so that an epoch has a few batches
TERMS = 100  # of the series for p; the rest is below 1e-99 for p below 0.999
LOW, HIGH = 16, 240  # away from 0 and 255, where values are clipped
NOISE = 2  # range of the dither, in steps: rounding by codecs and filters then has no bias
EDGE = 16  # 1/EDGE of a crop is ignored on each side, where the filter reaches the border


@dataclass(frozen=True)
class ReadWindows:
    """Windows as shares of their image's height and width, each (n,); flip: mirrored left to right."""

    top: np.ndarray
    left: np.ndarray
    height: np.ndarray
    width: np.ndarray
    flip: np.ndarray


def check_windows(name: str, request: LoadRequest, tell: Callable[[str, Any], None]) -> dict[str, Any]:
    """Return `windows` of a verdict on the registered loader `name`, for a request of its training split."""
    with TemporaryDirectory(prefix="gpufeed-windows-") as folder:
        tell("alive", "making images to read windows off")
        made = coordinate_images(Path(folder))
        stores = dict.fromkeys(STORES)
        if (store := LOADERS[name].store) is not None:
            stores[LOADERS[name].reads] = path = Path(folder) / store.file
            path.parent.mkdir(parents=True, exist_ok=True)
            load("store", LOADERS[name].reads, "build")(made, path)
        with make_loader(name, replace(request, manifest=made, **stores)) as loader:
            parts, count = [], 0
            while count < COUNT:
                for batch in loader:
                    tell("alive", "reading windows off")
                    parts.append(read_off(batch.images.cpu().numpy(), made.sizes()[batch.ids.cpu().numpy()]))
                    count += len(batch.ids)
            why = loader.own_windows
    theirs = np.concatenate(parts)[:COUNT]
    ours = drawn(replace(request.recipe, seed=0), np.tile(theirs[:, -2:], (OURS, 1)))
    pairs = zip(measures(theirs).items(), measures(ours).values(), strict=True)
    return {"count": COUNT, "why": why} | {what: agreement(found, right) for (what, found), right in pairs}


def coordinate_images(folder: Path) -> Manifest:
    """Write the images and return their manifest."""
    rows = []
    for height, width in SIZES:
        path = f"{height}x{width}.jpg"
        (folder / path).write_bytes(coordinate_jpeg(height, width))
        rows += [(path, 0, "train", height, width, 3)] * TIMES
    table = pd.DataFrame(rows, columns=["path", "label", "split", "height", "width", "channels"])
    info = DatasetInfo("windows", "image_folder", ["one"], "test", SHARES, SHARES)
    manifest = Manifest(folder, info, table)
    manifest.write()
    return manifest


def coordinate_image(height: int, width: int) -> np.ndarray:
    """Return an image whose red grows with x and whose green grows with y, uint8 (height, width, 3).

    The mean red of the pixel at x is LOW + (HIGH - LOW) * (x + 0.5) / width; noise decides the rounding. Blue
    falls as red grows, so half of their difference gives x without an offset of the decoder. (The fast
    transform of libjpeg-turbo makes both 1.2 steps darker, which is 1.7 pixels of 320, but not green.)
    """
    noise = np.random.default_rng(0).random((height, width, 3)) * NOISE - (NOISE - 1) / 2
    rows, columns = (LOW + (HIGH - LOW) * (np.arange(side) + 0.5) / side for side in (height, width))
    means = np.broadcast_arrays(columns, rows[:, None], LOW + HIGH - columns)
    return (np.stack(means, axis=-1) + noise).astype(np.uint8)  # whole parts


def coordinate_jpeg(height: int, width: int) -> bytes:
    """Return a coordinate image as a JPEG file that keeps its colours."""
    return jpeg(coordinate_image(height, width), 100, "4:4:4")


def read_windows(crops: np.ndarray) -> ReadWindows:
    """Return the windows of crops of coordinate images, by a line fitted to their colours.

    crops: (n, rows, columns, 3), resized from windows of at least 16 pixels a side. From JPEGs of 256 to
    1,024 pixels a side, edges are off by a sixth of a pixel (root mean square), at most half a pixel.
    """
    red, blue = (crops[..., channel].mean(axis=1, dtype=np.float64) for channel in (0, 2))
    left, right = fitted((red - blue + LOW + HIGH) / 2)
    top, bottom = fitted(crops[..., 1].mean(axis=2, dtype=np.float64))
    return ReadWindows(top, np.minimum(left, right), bottom - top, np.abs(right - left), right < left)


def fitted(colours: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the coordinates at both ends of rows, each (n,), from their colours (n, pixels)."""
    count = colours.shape[1]
    inner = np.arange(count // EDGE, count - count // EDGE)
    slope, start = np.polyfit((inner + 0.5) / count, colours[:, inner].T, 1)
    return (start - LOW) / (HIGH - LOW), (start + slope - LOW) / (HIGH - LOW)


def read_off(crops: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return top, left, height, width, flip and the image's height and width, (n, 7), in whole pixels.

    crops: uint8 (n, size, size, 3). sizes: (n, 2), of their images.
    """
    found = read_windows(crops)
    heights, widths = sizes.T
    top, bottom = (np.rint(edge * heights) for edge in (found.top, found.top + found.height))
    left, right = (np.rint(edge * widths) for edge in (found.left, found.left + found.width))
    return np.stack([top, left, bottom - top, right - left, found.flip, heights, widths], axis=1)


def drawn(recipe: RandomResizedCrop, sizes: np.ndarray) -> np.ndarray:
    """Return windows of images of these sizes (n, 2) by our rule, in the form of read_off."""
    heights, widths = torch.from_numpy(sizes.astype(np.int64)).T
    found = recipe.windows(torch.arange(len(sizes)), 0, heights, widths)
    parts = found.top, found.left, found.height, found.width, found.flip, heights, widths
    return np.stack([part.numpy() for part in parts], axis=1).astype(np.float64)


def measures(windows: np.ndarray) -> dict[str, np.ndarray]:
    """Return the compared measures of windows in the form of read_off."""
    top, left, height, width, flip, heights, widths = windows.T
    x, y = widths - width, heights - height
    return {
        "area": height * width / (heights * widths),
        "ratio": np.log(width / height),
        "x": left[x > 0] / x[x > 0],
        "y": top[y > 0] / y[y > 0],
        "flip": flip,
    }


def agreement(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
    """Return the two-sample Kolmogorov-Smirnov statistic and its asymptotic p.

    Repeated values, as in `flip`, make p too large, so that fewer differences are found.
    """
    a, b, both = np.sort(a), np.sort(b), np.concatenate([a, b])
    shares = [np.searchsorted(one, both, side="right") / len(one) for one in (a, b)]
    statistic = float(np.abs(shares[0] - shares[1]).max())
    scaled = statistic**2 * len(a) * len(b) / len(both)
    k = np.arange(1, TERMS + 1)
    p = 2 * float(((-1.0) ** (k - 1) * np.exp(-2 * k**2 * scaled)).sum()) if scaled > 0.04 else 1.0
    return {"statistic": statistic, "p": min(1.0, max(0.0, p))}
