"""Images of several sizes brought to the one that a source asks for (`resize` in its row)."""

import numpy as np
from PIL import Image


def resized(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """uint8 (H, W, 3) stretched to (height, width), bilinear over all pixels that a new one covers.

    Pillow's own resize, which is the reference. The image itself where it has that size.
    """
    if image.shape[:2] == size:
        return image
    height, width = size
    return np.array(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))
