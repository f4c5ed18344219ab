"""The base class of strip backends: strips in, one contiguous batch on the device out; and a test strip."""

import io
import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from PIL import Image

from gpufeed.decoders.base import Tolerance
from gpufeed.decoders.jpeg_parser import parse
from gpufeed.decoders.strip_joiner import join
from gpufeed.stores.strips_store import Strip


class StripBackend(ABC):
    """A decoder of strips for one device; its calls queue their work on the device's current stream.

    tolerance: of an image of a strip against its file decoded by Pillow. seams: whether the top and bottom
    row of an image may take colour from its neighbour in the strip.
    """

    name: ClassVar[str]
    tolerance: ClassVar[Tolerance]
    seams: ClassVar[bool]

    def __init__(self, device: torch.device, threads: int):
        """threads: cores that it may use. Raises Skip if this node lacks what it needs."""
        self.device, self.threads = device, threads

    @abstractmethod
    def decode_into(
        self, encoded: Sequence[np.ndarray], strips: Sequence[Strip], out: torch.Tensor
    ) -> list[int]:
        """Decode strips one after the other into `out`; return the places of those that it refuses.

        encoded: the bytes of each strip, uint8 (length,); strips: what they hold, all of one image size;
        out: contiguous uint8 (images, H, W, 3) on the device, as many images as the strips have.
        """

    @abstractmethod
    def version(self) -> str:
        """Return the backend and version of its library."""


def rows_of(strips: Sequence[Strip]) -> list[slice]:
    """Return the rows of each strip's images in the batch."""
    ends = np.cumsum([0, *(len(strip.ids) for strip in strips)]).tolist()
    return [slice(start, end) for start, end in itertools.pairwise(ends)]


def tall(images: torch.Tensor) -> torch.Tensor:
    """Return a batch (N, H, W, 3) seen as one image of N * H rows."""
    return images.view(-1, *images.shape[2:])


def trial_strip() -> tuple[np.ndarray, Strip]:
    """Return the bytes of a strip of two grey images of 64 x 64 pixels, 4:2:0, and what it holds."""
    buffer = io.BytesIO()
    Image.fromarray(np.full((64, 64, 3), 128, np.uint8)).save(buffer, "JPEG", subsampling="4:2:0")
    jpeg = parse(buffer.getvalue())
    data = np.frombuffer(bytearray(join([jpeg, jpeg])), np.uint8)
    return data, Strip(0, len(data), "trial", 64, 64, 3, jpeg.kind.sampling, np.arange(2))
