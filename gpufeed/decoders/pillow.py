"""The reference decoder and the reference resize: Pillow, on one core."""

import io

import numpy as np
import PIL
from PIL import Image, UnidentifiedImageError

from gpufeed.decoders.base import Decoded, Decoder, Outcome

BITS, PHOTOMETRIC, WHITE_IS_ZERO = 258, 262, 0  # tags of a TIFF, and a value. Source: TIFF 6.0, section 8


class PillowDecoder(Decoder):
    """Decodes one image after the other; the other decoders are compared with its pixels."""

    name = "pillow"

    def decode(self, files: list[bytes]) -> Decoded:
        results = [self._decode_one(data) for data in files]
        return Decoded([image for image, _ in results], [outcome for _, outcome in results])

    def decode_reduced(self, data: bytes, factor: int) -> np.ndarray | None:
        try:
            with Image.open(io.BytesIO(data)) as image:
                size = image.size
                if image.format != "JPEG" or image.mode not in ("L", "RGB"):
                    return None
                image.draft(image.mode, (size[0] // factor, size[1] // factor))
                reduced = np.array(image.convert("RGB"))
        except Exception:  # as in _decode_one; decoding the whole file then reports what is wrong
            return None
        return reduced if reduced.shape[:2] == reduced_size(size[1], size[0], factor) else None

    def version(self) -> str:
        return f"pillow {PIL.__version__}"

    def _decode_one(self, data: bytes) -> tuple[np.ndarray | None, Outcome]:
        try:
            return rgb(data), Outcome(self.name)
        except UnidentifiedImageError:
            # Pillow's own message contains the address of a buffer, which is useless
            return None, Outcome(None, f"not an image that Pillow knows ({len(data)} bytes)")
        except Exception as error:  # damaged files raise OSError, ValueError, struct.error, SyntaxError ...
            return None, Outcome(None, f"{type(error).__name__}: {error}")


def rgb(data: bytes) -> np.ndarray:
    """Return the pixels of one file, uint8 (H, W, 3); raise what Pillow raises.

    16-bit gray keeps its upper 8 bits, as 16-bit colour does in Pillow itself. Pillow refuses more pixels
    than twice Image.MAX_IMAGE_PIXELS as a decompression bomb.
    """
    with Image.open(io.BytesIO(data)) as image:
        if not has_range(image):
            raise ValueError(f"mode {image.mode}, which does not say which values are black and white")
        if image.mode.startswith("I;16"):  # 16-bit grayscale: convert() would clip at 255
            return np.repeat((np.array(image) >> 8).astype(np.uint8)[..., None], 3, axis=2)
        return np.array(image.convert("RGB"))


def reduced_size(height: int, width: int, factor: int) -> tuple[int, int]:
    """Return (height, width) of an image that libjpeg decodes at 1/factor."""
    return -(-height // factor), -(-width // factor)


def has_range(image: Image.Image) -> bool:
    """Return whether an opened image says which values are black and white.

    32-bit and floating-point images do not; convert() would clip them at 0 and 255. Nor do TIFFs of 12 bits,
    or with white as 0, which Pillow opens like any 16-bit image.
    """
    if not image.mode.startswith("I;16"):
        return image.mode not in ("I", "F")
    tags = getattr(image, "tag_v2", {})
    return tags.get(BITS, (16,))[0] == 16 and tags.get(PHOTOMETRIC) != WHITE_IS_ZERO


def resized(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize uint8 (H, W, 3) to (height, width) by Pillow's antialiased bilinear filter, the reference.

    Return the image itself if it already has that size.
    """
    if image.shape[:2] == size:
        return image
    height, width = size
    return np.array(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))
