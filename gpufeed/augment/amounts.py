"""The options that `torch`, `chain` and `fused` share, and values derived from them.

Pixel values are floats in 0..255 until they are normalised. The steps, in order:

1. window: a random crop of the image with `crop_padding` black pixels around it, perhaps flipped;
2. rotation by up to `rotate_degrees` either way, bilinear, about the centre, black outside;
3. brightness: times 1 - brightness to 1 + brightness, clamped to 0..255;
4. contrast: the distance from the pivot, 255 contrast_pivot, times 1 - contrast to 1 + contrast, clamped to
   0..255. The pivot is fixed, since the image's own mean would need another pass over the image;
5. salt and pepper: with probability `salt_pepper` a whole pixel becomes 0 or 255, half of the time each;
6. normalisation: (value / 255 - mean) / std, in `dtype`.
"""

import torch

from gpufeed.augment.base import CROP_FLIP_DEFAULTS

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
NOISE_TAG = 1  # the fourth word of the noise's counter; other noise can use another tag


def pepper_and_salt(probability: float) -> tuple[int, int]:
    """Return how many of the 2**32 values of a word mean pepper (the lowest) and salt (the highest)."""
    both = round(probability * 2**32)
    return both // 2, both - both // 2


def signed(word: int) -> int:
    """Return the int32 with the bits of a 32-bit word, so that a kernel's argument always has one type."""
    return word - 2**32 if word >= 2**31 else word
