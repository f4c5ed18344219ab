"""What a decoder is: encoded bytes in, uint8 RGB and one outcome an image out."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np


@dataclass(frozen=True)
class Outcome:
    """What became of one image: who decoded it, or the reason why nobody could."""

    decoder: str | None
    reason: str | None = None


@dataclass(frozen=True)
class Decoded:
    """The images of one call, in its order.

    images: one uint8 (H, W, 3) array an image, None where it failed. A list and not one (N, H, W, 3)
    array, since sizes may differ and a failed image has none. outcomes: one for each image.
    """

    images: list[np.ndarray | None]
    outcomes: list[Outcome]


class Decoder(ABC):
    """Decodes JPEG, PNG and what else it knows to RGB; a bad image is an outcome, never an exception.

    Grayscale, palette, CMYK and alpha become RGB; orientation tags are left alone, so that every
    decoder gives the height and width that the file's header says.
    """

    name: ClassVar[str]

    @abstractmethod
    def decode(self, files: list[bytes]) -> Decoded:
        """Decodes whole files given as bytes."""

    @abstractmethod
    def version(self) -> str:
        """Library and version, such as "pillow 12.0.0"."""
