"""What DALI's pipeline does to samples after decoding: rotation and colour jitter, or random crops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from gpufeed.augment.base import Augment
from gpufeed.augment.random_resized_crop import RandomResizedCrop
from gpufeed.system import random_draws

if TYPE_CHECKING:
    from nvidia.dali.data_node import DataNode

# option -> (DALI's argument, its middle value, its change for one unit of the option). The place in this
# table is the number of the draw, so that an option that is off does not change the others' draws.
DRAWN = {
    "rotate_degrees": ("angle", 0.0, 1.0),
    "brightness": ("brightness", 1.0, 1.0),
    "contrast": ("contrast", 1.0, 1.0),
    "saturation": ("saturation", 1.0, 1.0),
    "hue": ("hue", 0.0, 360.0),
}
# start and shape of the part of an image to decode; its new size; the first row and column of the square to
# keep
START, SHAPE, SIZE, FIRST = "start", "shape", "size", "first"


class DaliAugment(Augment):
    """A LoadRequest.sample_transform for DALI's loaders alone, which build `graph` into their pipeline.

    Every draw is a function of (seed, epoch, sample id), so that neither batch size nor order matters.
    """

    where = "loader"
    defaults = {  # noqa: RUF012
        "size": None,
        "rotate_degrees": 15.0,
        "brightness": 0.2,
        "contrast": 0.2,
        "saturation": 0.2,
        "hue": 0.02,
    }

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        size = self.options["size"]
        return (height, width) if size is None else (size, size)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the values drawn for each sample; an operation whose option is 0 is left out."""
        return tuple(name for option, (name, _, _) in DRAWN.items() if self.options[option])

    def values(self, ids: np.ndarray, epoch: int) -> dict[str, np.ndarray]:
        """Return float32 (n,) for each of `inputs`, a value for each sample. ids: int64 (n,).

        Angles and hues in degrees, uniform around 0; the others are factors, uniform around 1.
        """
        state = random_draws.sample_state(self.seed, epoch, torch.from_numpy(ids))
        found = {}
        for which, (option, (name, middle, unit)) in enumerate(DRAWN.items()):
            if self.options[option]:
                share = random_draws.draw(state, which).numpy() / 2 ** (random_draws.BITS - 1) - 1  # -1 to 1
                found[name] = (middle + share * (self.options[option] * unit)).astype(np.float32)
        return found

    def part(self, values: Mapping[str, DataNode]) -> dict[str, DataNode]:
        """Return {}, since whole images are decoded."""
        return {}

    def graph(self, images: DataNode, values: Mapping[str, DataNode]) -> DataNode:
        """Return the node that turns uint8 (H, W, 3) to float32 (3, H, W). values: the nodes of `inputs`."""
        from nvidia.dali import fn, types

        from gpufeed.decoders.dali_pipeline import stretched

        if self.options["size"] is not None:
            images = stretched(images, (self.options["size"],) * 2)
        colours = dict(values)
        if "angle" in colours:
            images = fn.rotate(images, angle=colours.pop("angle"), keep_size=True, fill_value=0.0)
        if colours:
            images = fn.color_twist(images, **colours)
        return fn.crop_mirror_normalize(
            images,
            dtype=types.FLOAT,
            output_layout="CHW",
            mean=[255 * mean for mean in self.mean],
            std=[255 * std for std in self.std],
        )


class DaliCrops:
    """The windows of recipe random_resized_crop, cropped, resized and flipped: uint8 (size, size, 3) each."""

    def __init__(self, recipe: RandomResizedCrop, sizes: np.ndarray):
        """sizes: int64 (N, 2), height and width of each file, by sample id."""
        self.recipe, self.sizes = recipe, sizes

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the values of each sample: the part to decode and its new size, or in evaluation
        the new size of the whole image and the place of the crop in it.
        """
        return (START, SHAPE, SIZE) if self.recipe.training else (SIZE, FIRST)

    def values(self, ids: np.ndarray, epoch: int) -> dict[str, np.ndarray]:
        """Return (n, 2), rows and columns, for each of `inputs`. ids: int64 (n,)."""
        windows = self.recipe.windows(
            torch.from_numpy(ids), epoch, *map(torch.from_numpy, self.sizes[ids].T.copy())
        )
        # DALI flips an image that it resizes to a negative number of columns
        columns = torch.where(windows.flip, -windows.columns, windows.columns)
        pairs = {
            START: (windows.top, windows.left),
            SHAPE: (windows.height, windows.width),
            SIZE: (windows.rows, columns),
            FIRST: (windows.first_row, windows.first_column),
        }
        types = {SIZE: np.float32}  # as fn.resize requires
        return {
            name: torch.stack(pairs[name], 1).numpy().astype(types.get(name, np.int32))
            for name in self.inputs
        }

    def part(self, values: Mapping[str, DataNode]) -> dict[str, DataNode]:
        """Return the part of each image to decode; {} in evaluation, which needs whole images."""
        return {name: values[name] for name in (START, SHAPE) if name in values}

    def graph(self, images: DataNode, values: Mapping[str, DataNode]) -> DataNode:
        """Return the node that makes samples of decoded parts, uint8 (H, W, 3). values: nodes of `inputs`."""
        from nvidia.dali import fn

        from gpufeed.decoders.dali_pipeline import stretched

        images = stretched(images, values[SIZE])
        if self.recipe.training:
            return images
        return fn.slice(images, start=values[FIRST], shape=[self.recipe.size] * 2, axes=[0, 1])
