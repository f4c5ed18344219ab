"""Base classes of decoders for some kinds of files, with Pillow for the rest; some also resize."""

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
    resize: tuple[int, int] | None = None  # (height, width) of its images, if not that of the files

    def __init__(self, threads: int = 1):
        super().__init__(threads)
        self.pillow = PillowDecoder()

    @abstractmethod
    def decode_taken(self, files: list[bytes]) -> Sequence[Any | None]:
        """Return a uint8 (H, W, 3) array or tensor for each file, None for a file that the library refuses.

        Images have the size `resize`, if that is set.
        """

    def decode(self, files: list[bytes]) -> Decoded:
        return Decoded(*fill_gaps(self.name, self.decode_fitting(files), files, self.pillow))

    def decode_into(self, files: list[bytes], out: torch.Tensor) -> list[Outcome]:
        """Decode in one call if the library takes all files and their images have the size of `out`."""
        if files and self.takes_all(files, tuple(out.shape[1:3])) and self.fill(files, out):
            return [Outcome(self.name)] * len(files)
        return super().decode_into(files, out)

    def takes_all(self, files: list[bytes], size: tuple[int, int]) -> bool:
        """Return whether all headers are of a kind in `takes` and of an image of (height, width) `size`."""
        for data in files:
            header = read_header(data)
            if header is None or header.kind not in self.takes or self.size_of(header) != size:
                return False
        return True

    def size_of(self, header: Header) -> tuple[int, int]:
        """Return (height, width) of a file's decoded image."""
        return self.resize or (header.height, header.width)

    def fill(self, files: list[bytes], out: torch.Tensor) -> bool:
        """Decode files for which `takes_all` is true into `out`, uint8 (N, H, W, 3).

        Return False if that failed, or if the library cannot do it cheaper than image by image.
        """
        return False

    def decode_fitting(self, files: list[bytes]) -> list[Any | None]:
        """Return the images of `decode_taken` at the places of their files; None for all other files."""
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
        """Return uint8 (H, W, 3); None for a file that the library refuses."""


def fits(image: Any | None, size: tuple[int, int]) -> bool:
    """Return whether there is an image and it has this (height, width)."""
    return image is not None and tuple(image.shape) == (*size, 3)


def fill_gaps(
    name: str, images: list[Any | None], files: list[bytes], pillow: PillowDecoder
) -> tuple[list[np.ndarray | None], list[Outcome]]:
    """Return the images, with Pillow's where there is none, and their outcomes."""
    images, outcomes = list(images), [Outcome(name)] * len(images)
    gaps = [i for i, image in enumerate(images) if image is None]
    decoded = pillow.decode([files[i] for i in gaps])
    for i, image, outcome in zip(gaps, decoded.images, decoded.outcomes, strict=True):
        images[i], outcomes[i] = image, outcome
    return images, outcomes


def isolate(decode_batch: Callable[[list[bytes]], list], files: list[bytes]) -> list[Any | None]:
    """Decode a batch by a call that raises Refused for any bad file: all at once, else in halves, and so on.

    So one bad file costs about as much as decoding the batch again, not a call for every file.
    """
    try:
        return decode_batch(files)
    except Refused:
        if len(files) == 1:
            return [None]
    half = len(files) // 2
    return [*isolate(decode_batch, files[:half]), *isolate(decode_batch, files[half:])]


class ResizingDecoder(FallbackDecoder):
    """A decoder that resizes all images to `resize`, (height, width), unless that is None."""

    def __init__(self, threads: int = 1, resize: tuple[int, int] | None = None):
        self.resize = resize  # first, since decoders of the GPU decode a trial image in their __init__
        super().__init__(threads)
        if resize is not None:
            self.pillow = ResizedPillow(resize)
            self.tolerance = self.tolerance.then(resize_tolerance(resize))

    def make_room(self, height: int, width: int) -> None:
        """Reserve memory for images of at most these sides."""


class ResizedPillow(PillowDecoder):
    """Pillow with its own resize, which is the reference."""

    def __init__(self, size: tuple[int, int]):
        super().__init__()
        self.size = size

    def decode(self, files: list[bytes]) -> Decoded:
        decoded = super().decode(files)
        images = [image if image is None else resized(image, self.size) for image in decoded.images]
        return Decoded(images, decoded.outcomes)


def resize_tolerance(size: tuple[int, int]) -> Tolerance:
    """Return how far DALI's antialiased bilinear resize to (height, width) may be from Pillow's.

    Both weight pixels by a triangle. At an image's border at most an eighth of it lies outside: Pillow cuts
    that off, DALI adds it to the outermost pixel. So border rows and columns may differ by 255 / 8, corners
    by 255 (1 - (7/8)^2). docs/lab/pixels.md shows that these bounds are reached, and that all other values
    differ by at most 1.
    """
    height, width = size
    corner = 255 * (1 - (7 / 8) ** 2)
    mean = 255 * (1 - (1 - 1 / (4 * height)) * (1 - 1 / (4 * width)))  # 2 of the rows, 2 of the columns
    return Tolerance(round(corner) + 1, mean + 1)  # Pillow rounds between rows and columns, DALI does not
