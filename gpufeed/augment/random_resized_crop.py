"""The recipe random_resized_crop: which part of an image becomes a sample, and how it is resized.

A window is a function of (seed, epoch, sample id, height and width of the image). Up to TRIES times an area
(a share of the image's, uniform in `scale`) and a ratio of width to height (log-uniform in `ratio`) are
drawn. The first pair whose rounded sides fit into the image decides the window's size, and its place is drawn
uniformly. If none fits, the window is the largest one in the centre whose ratio is within bounds. This is the
rule of torchvision's RandomResizedCrop.

Pixels: the window is cropped first, so that the filter sees nothing outside it. Output pixel i of n covers
the source from i w/n to (i+1) w/n. Its weights are a triangle of half-width max(w/n, 1) around the middle of
that, and sum to one. Pillow's BILINEAR does this, horizontally and then vertically, and rounds to uint8 after
each pass; it is the reference.

In evaluation the whole image is resized, so that its short side becomes `short_side`, and its central
size x size are kept.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image

from gpufeed.system import random_draws

TRIES = 10
AREA, RATIO, TOP, LEFT = range(4)  # the draws of a try
DRAWS = 4
UNIT = 2.0**-random_draws.BITS  # of a draw


@dataclass(frozen=True)
class Window:
    """The sample of one image: a part of it, resized to rows x columns, of which a square is kept.

    The part's sides are whole numbers unless the image was resized before.
    """

    top: float
    left: float
    height: float
    width: float
    rows: int
    columns: int
    first_row: int
    first_column: int
    flip: bool

    def scaled(self, before: tuple[int, int], after: tuple[int, int]) -> "Window":
        """Return the same window of an image that was resized; sizes are (height, width)."""
        tall, wide = (now / then for then, now in zip(before, after, strict=True))
        places = {"top": self.top * tall, "height": self.height * tall}
        return replace(self, **places, left=self.left * wide, width=self.width * wide)


@dataclass(frozen=True)
class Windows:
    """The windows of n images: fields as in Window, int64 (n,) each, flip bool (n,), all on one device."""

    top: torch.Tensor
    left: torch.Tensor
    height: torch.Tensor
    width: torch.Tensor
    rows: torch.Tensor
    columns: torch.Tensor
    first_row: torch.Tensor
    first_column: torch.Tensor
    flip: torch.Tensor

    def __len__(self) -> int:
        return len(self.top)

    def scaled(self, before: tuple[torch.Tensor, ...], after: tuple[torch.Tensor, ...]) -> "Windows":
        """Return the same windows of images that were resized; their places are then float64.

        before, after: heights and widths, int64 (n,) each.
        """
        tall, wide = (now.to(torch.float64) / then for then, now in zip(before, after, strict=True))
        places = {"top": self.top * tall, "height": self.height * tall}
        return replace(self, **places, left=self.left * wide, width=self.width * wide)

    def below(self, rows: torch.Tensor) -> "Windows":
        """Return the windows in images whose first `rows` rows, int64 (n,), were cut off."""
        return replace(self, top=self.top - rows)

    def select(self, rows: np.ndarray) -> "Windows":
        """Return some of the windows, which are on the host. rows: int64 (n,)."""
        return Windows(*(values[torch.from_numpy(rows)] for values in vars(self).values()))

    def needed(self, size: int) -> torch.Tensor:
        """Return the part of each image that its sample of size x size needs, int32 (n, 4).

        Top, left, height and width of the pixels under the filters; the windows are on the host.
        """
        axes = ((self.top, self.height, self.rows, self.first_row),)
        axes += ((self.left, self.width, self.columns, self.first_column),)
        bounds = [under_filters(*(values.numpy() for values in axis), size) for axis in axes]
        (top, bottom), (left, right) = bounds
        found = np.stack([top, left, bottom - top, right - left], axis=1)
        return torch.from_numpy(found.astype(np.int32))

    def __iter__(self) -> Iterator[Window]:
        """Iterate over the windows on the host."""
        return map(Window, *(values.tolist() for values in vars(self).values()))


@dataclass(frozen=True)
class RandomResizedCrop:
    """The recipe with its options and a cell's seed.

    size: side of a sample. scale: bounds of a window's share of the image. ratio: bounds of its width over
    its height. short_side: of an image in evaluation. training: whether windows are drawn.
    """

    size: int
    scale: Sequence[float] = (0.08, 1.0)
    ratio: Sequence[float] = (3 / 4, 4 / 3)
    flip_probability: float = 0.5
    short_side: int = 256
    seed: int = 0
    training: bool = True

    def for_evaluation(self) -> "RandomResizedCrop":
        """Return the same recipe for evaluation, without random windows."""
        return replace(self, training=False)

    def windows(
        self, ids: torch.Tensor, epoch: int | torch.Tensor, heights: torch.Tensor, widths: torch.Tensor
    ) -> Windows:
        """Return the window of each sample, on the device of `ids` and without waiting for it.

        ids, heights, widths: int64 (n,), the ids of the samples and the sides of their images.
        """
        if self.training:
            return self._drawn(ids, epoch, heights, widths)
        short, zero = torch.minimum(heights, widths), torch.zeros_like(ids)
        rows, columns = (self.short_side * sides // short for sides in (heights, widths))
        first = ((sides - self.size) // 2 for sides in (rows, columns))
        return Windows(zero, zero, heights, widths, rows, columns, *first, zero.bool())

    def windows_by_extension(
        self, ids: torch.Tensor, epoch: int, heights: torch.Tensor, widths: torch.Tensor
    ) -> Windows:
        """Return what `windows` does, on the host, in one call of the extension, which must be loaded.

        It releases the GIL, so that threads that make batches do not hold up a training step.
        """
        if not self.training:
            return self.windows(ids, epoch, heights, widths)
        seed = (self.seed + 2**63) % 2**64 - 2**63  # the same 64 bits as a signed number, which ops require
        options = (self.size, self.scale, self.ratio, self.flip_probability, seed, epoch)
        *fields, flip = torch.ops.gpufeed.draw_windows(ids, heights, widths, *options).unbind()
        return Windows(*fields, flip.bool())

    def _drawn(
        self, ids: torch.Tensor, epoch: int | torch.Tensor, heights: torch.Tensor, widths: torch.Tensor
    ) -> Windows:
        state = random_draws.sample_state(self.seed, epoch, ids)
        which = torch.arange(TRIES * DRAWS, device=ids.device).view(TRIES, DRAWS, 1) + random_draws.WINDOW
        numbers = random_draws.draw(state, which)  # (TRIES, DRAWS, n)
        shares = numbers[:, :TOP].to(torch.float64) * UNIT
        area = (heights * widths) * (self.scale[0] + shares[:, AREA] * (self.scale[1] - self.scale[0]))
        low, high = map(math.log, self.ratio)
        ratio = of_each("exp", low + shares[:, RATIO] * (high - low))
        sides = area / ratio, area * ratio
        height, width = (of_each("round", of_each("sqrt", side)).to(torch.int64) for side in sides)
        fits = (height > 0) & (height <= heights) & (width > 0) & (width <= widths)
        found, first = fits.any(0), fits.to(torch.uint8).argmax(0, keepdim=True)

        def chosen(values: torch.Tensor, otherwise: torch.Tensor) -> torch.Tensor:
            return torch.where(found, values.gather(0, first)[0], otherwise)

        low, high = self.ratio
        tall = torch.round(widths.to(torch.float64) / low).to(torch.int64).clamp_(min=1)
        wide = torch.round(heights.to(torch.float64) * high).to(torch.int64).clamp_(min=1)
        height, width = (
            chosen(height, torch.minimum(heights, tall)),
            chosen(width, torch.minimum(widths, wide)),
        )
        rest = heights - height, widths - width
        tops, lefts = (random_draws.below(numbers[:, axis], rest[axis - TOP] + 1) for axis in (TOP, LEFT))
        top, left = chosen(tops, rest[0] // 2), chosen(lefts, rest[1] // 2)
        flip = random_draws.chance(random_draws.draw(state, random_draws.FLIP), self.flip_probability)
        size, zero = torch.full_like(ids, self.size), torch.zeros_like(ids)
        return Windows(top, left, height, width, size, size, zero, zero, flip)

    def window(self, sample_id: int, epoch: int, height: int, width: int) -> Window:
        """Return the window of one sample, as `windows` does but without tensors, in a tenth of the time."""
        if not self.training:
            return self._middle(height, width)
        state = random_draws.sample_state(self.seed, epoch, sample_id)
        flip = random_draws.chance(random_draws.draw(state, random_draws.FLIP), self.flip_probability)
        low, high = map(math.log, self.ratio)
        for number in range(TRIES):
            draws = [random_draws.draw(state, random_draws.WINDOW + number * DRAWS + i) for i in range(DRAWS)]
            share = self.scale[0] + draws[AREA] * UNIT * (self.scale[1] - self.scale[0])
            area, ratio = height * width * share, math.exp(low + draws[RATIO] * UNIT * (high - low))
            h, w = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if 0 < h <= height and 0 < w <= width:
                top = random_draws.below(draws[TOP], height - h + 1)
                left = random_draws.below(draws[LEFT], width - w + 1)
                break
        else:
            low, high = self.ratio
            h, w = min(height, max(1, round(width / low))), min(width, max(1, round(height * high)))
            top, left = (height - h) // 2, (width - w) // 2
        return Window(top, left, h, w, self.size, self.size, 0, 0, flip)

    def _middle(self, height: int, width: int) -> Window:
        """Return the window of evaluation."""
        rows, columns = (self.short_side * side // min(height, width) for side in (height, width))
        first = ((side - self.size) // 2 for side in (rows, columns))
        return Window(0, 0, height, width, rows, columns, *first, False)

    def cut(self, pixels: np.ndarray, window: Window, reduced: int = 1) -> np.ndarray:
        """Return the sample of a window in uint8 (H, W, 3), uint8 (size, size, 3): the reference.

        reduced: the factor by which the image was scaled down when it was decoded; the window is of the
        original.
        """
        image = Image.fromarray(pixels)
        left, top = window.left / reduced, window.top / reduced
        right = min((window.left + window.width) / reduced, image.width)
        bottom = min((window.top + window.height) / reduced, image.height)
        outer = math.floor(left), math.floor(top), math.ceil(right), math.ceil(bottom)
        box = left - outer[0], top - outer[1], right - outer[0], bottom - outer[1]
        sample = image.crop(outer).resize((window.columns, window.rows), Image.Resampling.BILINEAR, box=box)
        if (window.rows, window.columns) != (self.size, self.size):
            row, column = window.first_row, window.first_column
            sample = sample.crop((column, row, column + self.size, row + self.size))
        if window.flip:
            sample = sample.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.array(sample)  # a copy for torch, since Pillow's own memory is read-only


def under_filters(
    begin: np.ndarray, length: np.ndarray, resized: np.ndarray, first: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the range of source pixels, on one axis, that `size` output pixels need: first, and last + 1.

    The part from `begin` on is resized to `resized` pixels, of which those from `first` on are kept. The
    range may include a pixel more on each side, to allow for rounding.
    """
    scale = length / resized
    support = np.maximum(scale, 1)
    low, end = np.floor(begin), np.ceil(begin + length)
    start = np.floor(begin + (first + 0.5) * scale - support) - 1
    stop = np.ceil(begin + (first + size - 0.5) * scale + support) + 1
    return np.clip(start, low, end - 1), np.clip(stop, low + 1, end)


def of_each(function: str, values: torch.Tensor) -> torch.Tensor:
    """Return numpy's function of each value on the host, torch's elsewhere.

    torch runs these on threads of MKL and OpenMP even for a few hundred values. If a loader's threads keep
    the cores busy, these wait for one another: a batch of 64 windows took 49 ms instead of 0.6.
    """
    if values.device.type == "cpu":
        return torch.from_numpy(getattr(np, function)(values.numpy()))
    return getattr(torch, function)(values)


def made_recipe(options: Mapping[str, Any] | None, seed: int) -> RandomResizedCrop | None:
    """Return the recipe with a cell's options; None without options, when a sample is the whole image."""
    return RandomResizedCrop(**options, seed=seed) if options else None
