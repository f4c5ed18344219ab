"""Decoders whose library brings images to one size too, and how near that is to Pillow's resize."""

from gpufeed.decoders.base import Decoded, Tolerance
from gpufeed.decoders.fallback import FallbackDecoder
from gpufeed.decoders.pillow import PillowDecoder
from gpufeed.decoders.resize import resized


class ResizingDecoder(FallbackDecoder):
    """Brings all images to `resize`, (height, width), if it has one; else leaves them as their files are."""

    def __init__(self, threads: int = 1, resize: tuple[int, int] | None = None):
        self.resize = resize  # first: decoders of the GPU try an image while they are set up
        super().__init__(threads)
        if resize is not None:
            self.pillow = ResizedPillow(resize)
            self.tolerance = self.tolerance.then(resize_tolerance(resize))


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
    can be reached, and that all other values are at most 1 off, tells docs/decoders.md.
    """
    height, width = size
    corner = 255 * (1 - (7 / 8) ** 2)
    mean = 255 * (1 - (1 - 1 / (4 * height)) * (1 - 1 / (4 * width)))  # 2 of the rows, 2 of the columns
    return Tolerance(round(corner) + 1, mean + 1)  # Pillow rounds between rows and columns, DALI does not
