"""The base class of decoders: encoded bytes in, uint8 RGB and an outcome an image out, on host or device.

DecodeCounts counts which decoder decoded a loader's images, since a decoder leaves files that it cannot take
to another one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gpufeed.core.errors import GpufeedError, Skip, import_or_skip

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Outcome:
    """The result for one image: the name of its decoder, or the reason why none could decode it."""

    decoder: str | None
    reason: str | None = None


@dataclass(frozen=True)
class Decoded:
    """The images of one call, in order.

    images: a uint8 (H, W, 3) array for each image, None where it failed; a list, since sizes may differ.
    outcomes: one for each image.
    """

    images: list[np.ndarray | None]
    outcomes: list[Outcome]


@dataclass(frozen=True)
class DeviceDecoded:
    """The images of one call as uint8 (H, W, 3) tensors on the requested device.

    On a GPU channels may lie apart, as in torchvision. Or the images are views of one block of memory, in
    which each may begin at any byte, and which lives as long as any of them.
    """

    images: list[torch.Tensor | None]
    outcomes: list[Outcome]


@dataclass(frozen=True)
class Tolerance:
    """How far an image may be from Pillow's, in steps of 0..255: the largest difference, and the mean."""

    max: int
    mean: float

    def exceeded(self, found: np.ndarray, expected: np.ndarray) -> str | None:
        """Return what is wrong with `found`, both uint8 (H, W, 3); None if it is within the tolerance."""
        if found.shape != expected.shape or found.dtype != expected.dtype:
            return f"{found.dtype} {found.shape} instead of {expected.dtype} {expected.shape}"
        difference = np.abs(found.astype(np.int16) - expected)
        largest, mean = int(difference.max()), float(difference.mean())
        if largest > self.max or mean > self.mean:
            return f"differs by {largest} (mean {mean:.4g}); allowed: {self.max} (mean {self.mean})"
        return None

    def then(self, other: Tolerance) -> Tolerance:
        """Return the tolerance of two steps in a row, of which the second averages over pixels."""
        return Tolerance(min(255, self.max + other.max), self.mean + other.mean)


EXACT = Tolerance(0, 0.0)


class Decoder(ABC):
    """Decodes JPEG, PNG and other formats to RGB; a bad image is an outcome, never an exception.

    Grayscale, palette, CMYK and alpha become RGB. Orientation tags are ignored, so that every decoder returns
    the height and width in the file's header.

    parallel: how it uses several cores: "processes" (one core a call: run several processes), "own threads"
    (one call uses `threads` cores) or "device" (the GPU decodes, `threads` cores help). by_torch: whether
    images come from torch, which then resizes them faster than Pillow. needs: modules beside Pillow, and the
    package that brings each; the last is `library`, which decodes. settings: what it chose for the size of
    its files, as in records; empty if size does not matter.
    """

    name: ClassVar[str]
    needs: ClassVar[dict[str, str]] = {}
    settings: dict[str, float | None] = {}  # noqa: RUF012
    parallel: ClassVar[str] = "processes"
    by_torch: ClassVar[bool] = False
    tolerance: ClassVar[Tolerance] = EXACT

    def __init__(self, threads: int = 1):
        """Check the node. threads: cores that one call may use. Raises Skip if the node lacks a package."""
        self.threads, needs = threads, self.needs.items()
        found = [import_or_skip(f"Decoder {self.name}", module, package) for module, package in needs]
        self.library = found[-1] if found else None

    def expect(self, size: float) -> None:  # noqa: B027 - most decode all sizes alike
        """Prepare for files of this mean size in bytes."""

    @abstractmethod
    def decode(self, files: list[bytes]) -> Decoded:
        """Decode whole files given as bytes."""

    def decode_to(self, files: list[bytes], device: torch.device) -> DeviceDecoded:
        """Decode whole files of any sizes; the images are ready for the device's current stream."""
        from gpufeed.decoders.image_transfer import to_device

        decoded = self.decode(files)
        return DeviceDecoded(to_device(decoded.images, device), decoded.outcomes)

    def decode_into(self, files: list[bytes], out: torch.Tensor) -> list[Outcome]:
        """Decode whole files into `out`, contiguous uint8 (N, H, W, 3) on any device; return their outcomes.

        An image of another size counts as failed; the row of a failed image is undefined. On CUDA the rows
        are ready for the current stream.
        """
        decoded = self.decode_to(files, out.device)
        return fill_rows(out, decoded)

    def decode_reduced(self, data: bytes, factor: int) -> np.ndarray | None:
        """Return one image at 1/factor of its height and width, rounded up, uint8 (h, w, 3).

        factor: 2, 4 or 8. None if the library cannot decode the file at a reduced size.
        """
        return None

    @abstractmethod
    def version(self) -> str:
        """Return the decoder and version of its library, such as "pillow 12.0.0"."""


def fill_rows(out: torch.Tensor, decoded: DeviceDecoded) -> list[Outcome]:
    """Copy images to their rows of out, uint8 (N, H, W, 3); return outcomes in which another size has
    failed.
    """
    outcomes = checked(decoded, [out.shape[1:]] * len(decoded.images))
    for place, (image, outcome) in enumerate(zip(decoded.images, outcomes, strict=True)):
        if outcome.decoder is not None:
            out[place].copy_(image)
    return outcomes


def checked(decoded: Decoded | DeviceDecoded, shapes: Sequence[tuple[int, ...]]) -> list[Outcome]:
    """Return the outcomes; an image of another shape than that in `shapes` counts as failed."""
    outcomes = list(decoded.outcomes)
    for place, (image, shape) in enumerate(zip(decoded.images, shapes, strict=True)):
        if image is not None and tuple(image.shape) != tuple(shape):
            found = f"decoded to {tuple(image.shape)}, the manifest says {tuple(shape)}"
            outcomes[place] = Outcome(None, found)
    return outcomes


def bad_file(path: Path, reason: str) -> GpufeedError:
    """Return the error for a file that cannot be read or decoded."""
    return GpufeedError(
        f"{path}: {reason}",
        "an image that can be read and decoded",
        "repair it or move it away; if gpufeed prepared the dataset, prepare it again",
    )


@dataclass
class DecodeCounts:
    """Counts of decoded images. decoder: the one that should decode them; by: images of each decoder.

    settings: of `decoder`, as in Decoder.settings. images_from: a description of how the images were changed
    before; None if they are those of the dataset's files.
    """

    decoder: str
    by: Counter[str] = field(default_factory=Counter)
    settings: dict[str, float | None] = field(default_factory=dict)
    images_from: str | None = None

    def add(self, decoder: str, images: int = 1) -> None:
        """Count images that this decoder decoded."""
        self.by[decoder] += images

    def take(self, outcomes: Iterable[Outcome]) -> None:
        """Count images that were decoded, each by its outcome's decoder."""
        self.by.update(outcome.decoder for outcome in outcomes)

    @property
    def images(self) -> int:
        return self.by.total()

    @property
    def fell_back(self) -> dict[str, int]:
        """Other decoders and their images, by name."""
        return {name: count for name, count in sorted(self.by.items()) if count and name != self.decoder}

    def asdict(self) -> dict[str, Any]:
        """Return the field `loading` of records and verdicts."""
        about = {"decoder": self.decoder, "images": self.images, "fell_back": self.fell_back}
        return about | self.settings | ({"images_from": self.images_from} if self.images_from else {})

    def check(self) -> None:
        """Raise Skip if other decoders decoded all of the images, so that this one was not measured."""
        others = self.fell_back
        if others and not self.by[self.decoder]:
            raise Skip(
                f"Decoder {self.decoder} takes none of these files: all {self.images:,} images that it was "
                f"given were decoded by {' and '.join(others)}."
            )


def sum_counts(counts: Sequence[DecodeCounts]) -> DecodeCounts:
    """Return the sum of at least one count of one decoder."""
    return replace(counts[0], by=sum((one.by for one in counts), Counter()))
