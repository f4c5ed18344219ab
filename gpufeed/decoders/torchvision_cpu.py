"""torchvision.io, on one core."""

import numpy as np

from gpufeed.decoders.base import EXACT
from gpufeed.decoders.encoded_file import JPEG_KINDS, PNG_KINDS, TALL_CHROMA
from gpufeed.decoders.fallback import SingleDecoder


class TorchvisionCpuDecoder(SingleDecoder):
    """libjpeg-turbo and libpng behind torchvision.io.decode_image."""

    name = "torchvision_cpu"
    needs = {"simplejpeg": "simplejpeg", "torchvision": "torchvision"}  # noqa: RUF012
    # its libjpeg-turbo rounds 4:4:0 differently from Pillow's, by up to 2 and 0.17 in the mean
    takes = (JPEG_KINDS | PNG_KINDS) - {TALL_CHROMA}
    by_torch = True
    tolerance = EXACT  # on 1,110 real JPEGs, torchvision 0.25.0 against Pillow 13.0.0

    def decode_one(self, data: bytes) -> np.ndarray | None:
        import torch

        encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)  # a tensor must be writable
        try:
            image = self.library.io.decode_image(encoded, mode="RGB")  # (3, H, W)
        except RuntimeError:
            return None
        return image.permute(1, 2, 0).contiguous().numpy()  # (H, W, 3)
