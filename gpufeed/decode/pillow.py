"""The reference decoder: Pillow, on one core."""

import io

import numpy as np
import PIL
from PIL import Image, UnidentifiedImageError

from gpufeed.decode.base import Decoded, Decoder, Outcome


class PillowDecoder(Decoder):
    """Decodes one image after the other; the other decoders are compared with its pixels."""

    name = "pillow"

    def decode(self, files: list[bytes]) -> Decoded:
        results = [self._decode_one(data) for data in files]
        return Decoded([image for image, _ in results], [outcome for _, outcome in results])

    def version(self) -> str:
        return f"pillow {PIL.__version__}"

    def _decode_one(self, data: bytes) -> tuple[np.ndarray | None, Outcome]:
        try:
            return rgb(data), Outcome(self.name)
        except UnidentifiedImageError:
            # its own message holds the address of a buffer, which says nothing
            return None, Outcome(None, f"not an image that Pillow knows ({len(data)} bytes)")
        except Exception as error:  # damaged files raise OSError, ValueError, struct.error, SyntaxError ...
            return None, Outcome(None, f"{type(error).__name__}: {error}")


def rgb(data: bytes) -> np.ndarray:
    """The pixels of one file, uint8 (H, W, 3); raises what Pillow raises.

    More pixels than twice Image.MAX_IMAGE_PIXELS are refused by Pillow as a decompression bomb.
    """
    with Image.open(io.BytesIO(data)) as image:
        if image.mode.startswith("I;16"):  # 16-bit grayscale: convert() would clip at 255
            return np.repeat((np.array(image) >> 8).astype(np.uint8)[..., None], 3, axis=2)
        return np.array(image.convert("RGB"))
