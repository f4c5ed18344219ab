"""What a decoder is: encoded bytes in, uint8 RGB and one outcome an image out, on the host or on a device.

A tally counts whose images a loader yields, since a decoder leaves what it cannot take to another.
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


@dataclass(frozen=True)
class DeviceDecoded:
    """As Decoded, with one uint8 (H, W, 3) tensor an image on the device that was asked for.

    On a GPU channels may lie apart, as torchvision has them, or images one behind the other in one piece of
    memory, which stays as long as one of them, and in which one may begin at any byte.
    """

    images: list[torch.Tensor | None]
    outcomes: list[Outcome]


@dataclass(frozen=True)
class Tolerance:
    """How far one image may be from Pillow's, in steps of 0..255: any value of it, and the mean over it."""

    max: int
    mean: float

    def exceeded(self, found: np.ndarray, expected: np.ndarray) -> str | None:
        """What is wrong with `found`, both uint8 (H, W, 3); None if it is within the tolerance."""
        if found.shape != expected.shape or found.dtype != expected.dtype:
            return f"{found.dtype} {found.shape} instead of {expected.dtype} {expected.shape}"
        difference = np.abs(found.astype(np.int16) - expected)
        largest, mean = int(difference.max()), float(difference.mean())
        if largest > self.max or mean > self.mean:
            return f"differs by {largest} (mean {mean:.4g}), allowed are {self.max} (mean {self.mean})"
        return None

    def then(self, other: Tolerance) -> Tolerance:
        """That of a work whose result goes through another, which averages over pixels."""
        return Tolerance(min(255, self.max + other.max), self.mean + other.mean)


EXACT = Tolerance(0, 0.0)


class Decoder(ABC):
    """Decodes JPEG, PNG and what else it knows to RGB; a bad image is an outcome, never an exception.

    Grayscale, palette, CMYK and alpha become RGB; orientation tags are left alone, so that every
    decoder gives the height and width that the file's header says.

    parallel says how it uses several cores: "processes" (one core a call: run several processes),
    "own threads" (one call uses `threads` cores) or "device" (the GPU decodes, `threads` cores help).
    by_torch: whether images come from torch, which then resizes them faster than Pillow.
    needs: modules beside Pillow, and the package that brings each. settings: how it is set for the size of
    its files, as records say it; empty where size does not matter.
    """

    name: ClassVar[str]
    needs: ClassVar[dict[str, str]] = {}
    settings: dict[str, float | None] = {}  # noqa: RUF012
    parallel: ClassVar[str] = "processes"
    by_torch: ClassVar[bool] = False
    tolerance: ClassVar[Tolerance] = EXACT

    def __init__(self, threads: int = 1):
        """threads: cores that one call may use. Raises Skip if this node lacks what the decoder needs."""
        self.threads = threads
        for module, package in self.needs.items():
            import_or_skip(f"Decoder {self.name}", module, package)

    def expect(self, size: float) -> None:  # noqa: B027 - most decode all sizes alike
        """Gets ready for files of so many bytes each in the mean."""

    @abstractmethod
    def decode(self, files: list[bytes]) -> Decoded:
        """Decodes whole files given as bytes."""

    def decode_to(self, files: list[bytes], device: torch.device) -> DeviceDecoded:
        """Decodes whole files of any sizes; the images are ready for the device's current stream."""
        from gpufeed.decoders.image_transfer import to_device

        decoded = self.decode(files)
        return DeviceDecoded(to_device(decoded.images, device), decoded.outcomes)

    def decode_into(self, files: list[bytes], out: torch.Tensor) -> list[Outcome]:
        """Decodes whole files into `out`, contiguous uint8 (N, H, W, 3) on any device; one outcome a file.

        An image of another size counts as failed; the row of a failed image holds anything. On CUDA the
        rows are ready for the current stream.
        """
        decoded = self.decode_to(files, out.device)
        return fill_rows(out, decoded)

    def decode_reduced(self, data: bytes, factor: int) -> np.ndarray | None:
        """Return one image at 1/factor of its height and width, rounded up, uint8 (h, w, 3).

        factor: 2, 4 or 8. None where the library has no such way for the file, which saves work.
        """
        return None

    @abstractmethod
    def version(self) -> str:
        """Decoder and version of its library, such as "pillow 12.0.0"."""


def fill_rows(out: torch.Tensor, decoded: DeviceDecoded) -> list[Outcome]:
    """Copies images of the size of out's rows, uint8 (N, H, W, 3), to their places; the new outcomes."""
    outcomes = checked(decoded, [out.shape[1:]] * len(decoded.images))
    for place, (image, outcome) in enumerate(zip(decoded.images, outcomes, strict=True)):
        if outcome.decoder is not None:
            out[place].copy_(image)
    return outcomes


def checked(decoded: Decoded | DeviceDecoded, shapes: Sequence[tuple[int, ...]]) -> list[Outcome]:
    """The outcomes, in which an image of another shape than it should have counts as failed."""
    outcomes = list(decoded.outcomes)
    for place, (image, shape) in enumerate(zip(decoded.images, shapes, strict=True)):
        if image is not None and tuple(image.shape) != tuple(shape):
            found = f"decoded to {tuple(image.shape)}, the manifest says {tuple(shape)}"
            outcomes[place] = Outcome(None, found)
    return outcomes


def bad_file(path: Path, reason: str) -> GpufeedError:
    """The error for a file of the manifest that cannot be a sample any more."""
    return GpufeedError(
        f"{path}: {reason}", "an image that can be read and decoded", "prepare the dataset again"
    )


@dataclass
class Tally:
    """Images decoded so far. decoder: whose they should be; by: who decoded how many, that one included.

    settings: of that decoder, as Decoder.settings. images_from: in words, what was made of the images before
    it decodes them; None where they are those of the dataset's files.
    """

    decoder: str
    by: Counter[str] = field(default_factory=Counter)
    settings: dict[str, float | None] = field(default_factory=dict)
    images_from: str | None = None

    def add(self, decoder: str, images: int = 1) -> None:
        """Counts images of one decoder."""
        self.by[decoder] += images

    def take(self, outcomes: Iterable[Outcome]) -> None:
        """Counts images that were decoded, each by its outcome's decoder."""
        self.by.update(outcome.decoder for outcome in outcomes)

    @property
    def images(self) -> int:
        return self.by.total()

    @property
    def fell_back(self) -> dict[str, int]:
        """Other decoders and their images, by name."""
        return {name: count for name, count in sorted(self.by.items()) if count and name != self.decoder}

    def asdict(self) -> dict[str, Any]:
        """The field `loading` of records and verdicts."""
        about = {"decoder": self.decoder, "images": self.images, "fell_back": self.fell_back}
        return about | self.settings | ({"images_from": self.images_from} if self.images_from else {})

    def check(self) -> None:
        """Raises Skip if the decoder has decoded nothing of all the images: it is not the one measured."""
        others = self.fell_back
        if others and not self.by[self.decoder]:
            raise Skip(
                f"Decoder {self.decoder} takes none of these files: all {self.images:,} images that it was "
                f"given were decoded by {' and '.join(others)}."
            )


def sum_tallies(tallies: Sequence[Tally]) -> Tally:
    """One tally of several of one decoder; at least one."""
    return replace(tallies[0], by=sum((tally.by for tally in tallies), Counter()))
