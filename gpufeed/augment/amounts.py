"""The options that `torch`, `chain` and `fused` share, their bounds, and values derived from them.

Pixel values are floats in 0..255 until they are normalised. The steps, in order:

1. window: a random crop of the image with `crop_padding` black pixels around it, perhaps flipped;
2. rotation by up to `rotate_degrees` either way, bilinear, about the centre, black outside;
3. brightness: times 1 - brightness to 1 + brightness, clamped to 0..255;
4. contrast: the distance from the pivot, 255 contrast_pivot, times 1 - contrast to 1 + contrast, clamped to
   0..255. The pivot is fixed, since the image's own mean would need another pass over the image;
5. salt and pepper: with probability `salt_pepper` a whole pixel becomes 0 or 255, half of the time each;
6. normalisation: (value / 255 - mean) / std, in `dtype`.
"""

from typing import Any

import torch

from gpufeed.augment.base import CROP_FLIP_DEFAULTS, check_crop_flip
from gpufeed.core.errors import GpufeedError, require_known

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
FUSED_DEFAULTS = {
    **CROP_FLIP_DEFAULTS,
    "brightness": 0.0,
    "contrast": 0.0,
    "contrast_pivot": 0.5,
    "salt_pepper": 0.0,
    "dtype": "float32",
}
DEFAULTS = {**FUSED_DEFAULTS, "rotate_degrees": 0.0}
LARGEST = {"brightness": 1, "contrast": 1, "contrast_pivot": 1, "salt_pepper": 1, "rotate_degrees": 180}
NOISE_TAG = 1  # the fourth word of the noise's counter; other noise can use another tag


def check(options: dict[str, Any]) -> None:
    """Raise GpufeedError for an amount out of its bounds or an unknown dtype."""
    check_crop_flip(options)
    for name, largest in LARGEST.items():
        value = options.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= largest:
            raise GpufeedError(
                f"{name} {value!r}", f"a number from 0 to {largest}", "correct config/hydra/augment"
            )
    require_known("dtype", options["dtype"], DTYPES, where="config/hydra/augment")


def pepper_and_salt(probability: float) -> tuple[int, int]:
    """Return how many of the 2**32 values of a word mean pepper (the lowest) and salt (the highest)."""
    both = round(probability * 2**32)
    return both // 2, both - both // 2


def signed(word: int) -> int:
    """Return the int32 with the bits of a 32-bit word, so that a kernel's argument always has one type."""
    return word - 2**32 if word >= 2**31 else word
