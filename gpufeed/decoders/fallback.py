"""Decoders for a part of all files, with Pillow for the rest; some resize too, nearly as Pillow does."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gpufeed.decoders.base import Decoded, Decoder, Outcome, Tolerance
from gpufeed.decoders.encoded_file import JPEG_KINDS, PNG_KINDS, Header, read_header
from gpufeed.decoders.pillow import PillowDecoder, resized

if TYPE_CHECKING:
    import torch


class Refused(Exception):
    """A library refused a whole call because of one of its files."""


class FallbackDecoder(Decoder):
    """Files of the kinds in `takes` go to `decode_taken`; all others, and what it refuses, go to Pillow."""

    takes: ClassVar[frozenset[str]] = JPEG_KINDS | PNG_KINDS
    resize: tuple[int, int] | None = None  # (height, width) of what it gives, if not that of the files
    library: Any  # the package that decodes, whose version is the decoder's

    def __init__(self, threads: int = 1):
        super().__init__(threads)
        self.pillow = PillowDecoder()

    @abstractmethod
    def decode_taken(self, files: list[bytes]) -> Sequence[Any | None]:
        """One uint8 (H, W, 3) array or tensor a file, None for a file that the library refuses.

        In the size of `resize`, if it has one.
        """

    def decode(self, files: list[bytes]) -> Decoded:
        return Decoded(*fill_gaps(self.name, self.decode_fitting(files), files, self.pillow))

    def decode_into(self, files: list[bytes], out: torch.Tensor) -> list[Outcome]:
        """In one call where all files are of the library's kinds and come out in one size, as mostly."""
        if files and self.takes_all(files, tuple(out.shape[1:3])) and self.fill(files, out):
            return [Outcome(self.name)] * len(files)
        return super().decode_into(files, out)

    def takes_all(self, files: list[bytes], size: tuple[int, int]) -> bool:
        """Whether every file is of a kind in `takes` and comes out in (height, width), by its header."""
        for data in files:
            header = read_header(data)
            if header is None or header.kind not in self.takes or self.size_of(header) != size:
                return False
        return True

    def size_of(self, header: Header) -> tuple[int, int]:
        """(height, width) of what becomes of a file."""
        return self.resize or (header.height, header.width)

    def fill(self, files: list[bytes], out: torch.Tensor) -> bool:
        """Decodes files that it takes, which all come out in one size, into `out`, uint8 (N, H, W, 3).

        False if that failed, or if the library has no form that is cheaper than image by image.
        """
        return False

    def decode_fitting(self, files: list[bytes]) -> list[Any | None]:
        """What `decode_taken` makes of the files that it takes, in place; None for all others."""
        headers = [read_header(data) for data in files]
        taken = [i for i, header in enumerate(headers) if header and header.kind in self.takes]
        images: list[Any | None] = [None] * len(files)
        if taken:
            results = self.decode_taken([files[i] for i in taken])
            for i, image in zip(taken, results, strict=True):
                images[i] = image if fits(image, self.size_of(headers[i])) else None
        return images

    def version(self) -> str:
        return f"{self.name} {self.library.__version__}"


class SingleDecoder(FallbackDecoder):
    """A decoder whose library takes one file a call."""

    def decode_taken(self, files: list[bytes]) -> list[np.ndarray | None]:
        return [self.decode_one(data) for data in files]

    @abstractmethod
    def decode_one(self, data: bytes) -> np.ndarray | None:
        """uint8 (H, W, 3); None for a file that the library refuses."""


def fits(image: Any | None, size: tuple[int, int]) -> bool:
    """Whether a result has the size that it should have, so that no wrong sample passes for a right one."""
    return image is not None and tuple(image.shape) == (*size, 3)


def fill_gaps(
    name: str, images: list[Any | None], files: list[bytes], pillow: PillowDecoder
) -> tuple[list[np.ndarray | None], list[Outcome]]:
    """Pillow's image where `images` has none, and every image's outcome."""
    images, outcomes = list(images), [Outcome(name)] * len(images)
    gaps = [i for i, image in enumerate(images) if image is None]
    decoded = pillow.decode([files[i] for i in gaps])
    for i, image, outcome in zip(gaps, decoded.images, decoded.outcomes, strict=True):
        images[i], outcomes[i] = image, outcome
    return images, outcomes


def isolate(decode_batch: Callable[[list[bytes]], list], files: list[bytes]) -> list[Any | None]:
    """A batch call that raises Refused for one bad file: all files together, or else half of them each.

    So one bad file of a batch costs as much as decoding the batch again, not a call for every file.
    """
    try:
        return decode_batch(files)
    except Refused:
        if len(files) == 1:
            return [None]
    half = len(files) // 2
    return [*isolate(decode_batch, files[:half]), *isolate(decode_batch, files[half:])]


class ResizingDecoder(FallbackDecoder):
    """Brings all images to `resize`, (height, width), if it has one; else leaves them as their files are."""

    def __init__(self, threads: int = 1, resize: tuple[int, int] | None = None):
        self.resize = resize  # first: decoders of the GPU try an image while they are set up
        super().__init__(threads)
        if resize is not None:
            self.pillow = ResizedPillow(resize)
            self.tolerance = self.tolerance.then(resize_tolerance(resize))

    def make_room(self, height: int, width: int) -> None:
        """Gets ready for images of at most these sides."""


class ResizedPillow(PillowDecoder):
    """Pillow, and its own resize, which is the reference."""

    def __init__(self, size: tuple[int, int]):
        super().__init__()
        self.size = size

    def decode(self, files: list[bytes]) -> Decoded:
        decoded = super().decode(files)
        images = [image if image is None else resized(image, self.size) for image in decoded.images]
        return Decoded(images, decoded.outcomes)


def resize_tolerance(size: tuple[int, int]) -> Tolerance:
    """How far DALI's antialiased bilinear resize to (height, width) may be from Pillow's, in steps of 0..255.

    Both lay a triangle over the pixels that a new one covers. At the sides of an image an eighth of it at
    most lies outside: Pillow cuts that off, DALI gives it to the outermost pixel. So the outermost rows and
    columns of the new image may differ by 255 / 8, its corners by 255 (1 - (7/8)^2), nothing else; that they
    can be reached, and that all other values are at most 1 off, tells docs/lab/pixels.md.
    """
    height, width = size
    corner = 255 * (1 - (7 / 8) ** 2)
    mean = 255 * (1 - (1 - 1 / (4 * height)) * (1 - 1 / (4 * width)))  # 2 of the rows, 2 of the columns
    return Tolerance(round(corner) + 1, mean + 1)  # Pillow rounds between rows and columns, DALI does not
