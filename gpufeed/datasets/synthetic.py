"""Generated images of any size and number: each class is a grating, easy to learn.

Each class has its own orientation, spatial frequency and colour; phase, contrast and noise are random.
Sample i depends on (seed, i) and the options, not on the samples before it.
"""

import colorsys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from gpufeed.core.config_sources import check_splits, checked_options
from gpufeed.datasets.manifest import DatasetInfo, Manifest
from gpufeed.datasets.staging import jpeg, png, staging

FORMATS = {"jpeg": "jpg", "png": "png"}  # option -> file suffix
NOISE = 0.08  # standard deviation, of pixels in 0..1


@dataclass(frozen=True)
class Options:
    """count: images in both splits together; size: side in pixels or (height, width); shares in 0..1."""

    count: int
    size: int | tuple[int, int]
    classes: int
    format: str
    quality: int
    grayscale_share: float
    evaluation_share: float
    seed: int

    @property
    def shape(self) -> tuple[int, int]:
        """(height, width)"""
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    @property
    def evaluation(self) -> int:
        """Images of the split `test`."""
        return round(self.count * self.evaluation_share)


def reorganise(archives: list[Path], out: Path, dataset: str, options: dict) -> Manifest:
    """Make the images below `out/images/<train|test>/<class>/` and their manifest, without an archive.

    Labels cycle through the classes, so that both splits are balanced. Raises GpufeedError for options that
    are unknown or impossible.
    """
    choice = parse_options(options)
    classes = [f"class_{label:0{len(str(choice.classes - 1))}d}" for label in range(choice.classes)]
    order = np.random.default_rng([choice.seed, choice.count]).permutation(choice.count)
    grayscale = set(order[: round(choice.count * choice.grayscale_share)].tolist())
    training = choice.count - choice.evaluation
    sums = np.zeros((2, 3))  # `moments` of all training images
    with staging(out) as stage:
        for index in tqdm(range(choice.count), desc=f"{dataset}: images", unit=" images", disable=None):
            label = index % choice.classes
            pixels = grating(index, label, choice)  # uint8 (H, W, 3)
            if index in grayscale:
                pixels = np.asarray(Image.fromarray(pixels).convert("L"))  # uint8 (H, W)
            split = "train" if index < training else "test"
            if split == "train":
                sums += moments(pixels)
            name = f"{index:06d}.{FORMATS[choice.format]}"
            shape = (*choice.shape, 1 if pixels.ndim == 2 else 3)
            stage.add(split, classes[label], name, label, encode(pixels, choice), shape)
        mean, squares = sums / (training * choice.shape[0] * choice.shape[1])
        std = np.sqrt(np.maximum(squares - mean**2, 0))
        looks = tuple(mean.round(6).tolist()), tuple(std.round(6).tolist())
        source = {
            key: list(value) if isinstance(value, tuple) else value for key, value in asdict(choice).items()
        }
        return stage.finish(DatasetInfo(dataset, "synthetic", classes, "test", *looks, source=source))


def parse_options(options: dict) -> Options:
    """Return the options with defaults; raise GpufeedError for one that is unknown or impossible."""
    found = checked_options("synthetic", options)
    check_splits(options, "the options of layout synthetic")
    if isinstance(found["size"], list):
        found["size"] = tuple(found["size"])
    return Options(**found)


def grating(index: int, label: int, options: Options) -> np.ndarray:
    """Return the sample `index` of class `label`: uint8 (H, W, 3)."""
    random = np.random.default_rng([options.seed, index])
    height, width = options.shape
    angle = np.pi * label / options.classes
    cycles = 3 + 2 * (label % 3)  # over the shorter side, so that images of all sizes look alike
    wave = 2 * np.pi * cycles / min(height, width)
    phase = random.uniform(0, 2 * np.pi)
    rows = np.arange(height, dtype=np.float32)[:, None] * np.float32(wave * np.sin(angle))  # (H, 1)
    columns = np.arange(width, dtype=np.float32)[None, :] * np.float32(wave * np.cos(angle))  # (1, W)
    stripes = np.sin(rows + columns + np.float32(phase)) * np.float32(random.uniform(0.25, 0.45))  # (H, W)
    tint = np.array(colorsys.hsv_to_rgb(label / options.classes, 0.5, 1.0), dtype=np.float32)  # (3,)
    pixels = 0.5 + stripes[..., None] * tint + (tint - tint.mean()) * 0.2  # (H, W, 3)
    pixels += NOISE * random.standard_normal((height, width, 1), dtype=np.float32)
    return (np.clip(pixels, 0, 1) * 255 + 0.5).astype(np.uint8)


def encode(pixels: np.ndarray, options: Options) -> bytes:
    """Encode uint8 (H, W, 3) or (H, W) as a PNG or a baseline JPEG, which is 4:2:0 if it has colour."""
    return png(pixels) if options.format == "png" else jpeg(pixels, options.quality)


def moments(image: np.ndarray) -> np.ndarray:
    """Return the sums of an image's pixels, in 0..1, and of their squares, by channel: (2, C).

    image: uint8 (H, W, 3), or (H, W), whose one channel stands for three equal ones.
    """
    values = np.atleast_3d(image).reshape(image.shape[0] * image.shape[1], -1) / 255  # (H * W, C)
    return np.stack([values.sum(axis=0), np.square(values).sum(axis=0)])
