"""No decoder at all: images that were decoded before, in place of what a decoder would make of the files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpufeed.decoders.base import Decoded, Decoder, Outcome

if TYPE_CHECKING:
    import torch


class DecodedBefore(Decoder):
    """Gives images of one size by turns, whatever the files are; bears the name of whom it stands in for."""

    def __init__(self, of: Decoder, images: np.ndarray, device: torch.device):
        """images: uint8 (n, H, W, 3), kept on `device`."""
        from torch import from_numpy

        super().__init__(of.threads)
        self.of, self.name = of, of.name
        self.host, self.images, self.next = images, from_numpy(images).to(device), 0

    def decode(self, files: list[bytes]) -> Decoded:
        places = self._places(len(files))
        return Decoded([self.host[place] for place in places], [Outcome(self.name)] * len(files))

    def decode_into(self, files: list[bytes], out: torch.Tensor) -> list[Outcome]:
        """In whole stretches of neighbours, a copy each: a batch has one, or two at the end of the images."""
        start = 0
        while start < len(files):
            end = min(len(files), start + len(self.images) - self.next)
            out[start:end].copy_(self.images[self.next : self.next + end - start])
            self.next = (self.next + end - start) % len(self.images)
            start = end
        return [Outcome(self.name)] * len(files)

    def version(self) -> str:
        return self.of.version()

    def _places(self, count: int) -> list[int]:
        places = [(self.next + number) % len(self.images) for number in range(count)]
        self.next = (self.next + count) % len(self.images)
        return places
