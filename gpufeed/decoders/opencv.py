"""OpenCV on one core: it decodes to BGR, then the channels are swapped, as loaders with OpenCV do."""

import numpy as np

from gpufeed.decoders.base import EXACT
from gpufeed.decoders.fallback import SingleDecoder


class OpenCVDecoder(SingleDecoder):
    """libjpeg-turbo and libpng behind cv2.imdecode."""

    name = "opencv"
    needs = {"simplejpeg": "simplejpeg", "cv2": "opencv-python-headless"}  # noqa: RUF012
    tolerance = EXACT  # on 1,110 real JPEGs, cv2 5.0.0 against Pillow 13.0.0

    def __init__(self, threads: int = 1):
        super().__init__(threads)
        # OpenCV's threads do not survive the fork of a decoding process, which may use one core only
        self.library.setNumThreads(1)
        self.flags = self.library.IMREAD_COLOR | self.library.IMREAD_IGNORE_ORIENTATION

    def decode_one(self, data: bytes) -> np.ndarray | None:
        try:
            bgr = self.library.imdecode(np.frombuffer(data, np.uint8), self.flags)  # (H, W, 3)
        except self.library.error:
            return None
        return None if bgr is None else self.library.cvtColor(bgr, self.library.COLOR_BGR2RGB)
