"""Images of any sizes in one buffer, from which batches are cut."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Ragged:
    """uint8 images, each with its own height and width, in one flat tensor.

    flat: uint8 (bytes,). offsets, heights, widths: int64 (N,), all three on flat's device or all on the host.
    Image n begins at flat[offsets[n]] and is (H, W, 3) without gaps, or (3, H, W) if planar; images may be in
    any order, overlap and repeat. whole: None, or if only parts of the images are there, int64 (4, N) on the
    offsets' device: the part's first row and column in its image, and the image's height and width.
    """

    flat: torch.Tensor
    offsets: torch.Tensor
    heights: torch.Tensor
    widths: torch.Tensor
    planar: bool = False
    whole: torch.Tensor | None = None

    @classmethod
    def pack(cls, images: Sequence[torch.Tensor]) -> "Ragged":
        """Copy at least one image, uint8 (H, W, 3) on one device each, to one buffer."""
        sizes = torch.tensor([image.shape[:2] for image in images])
        ends = list(itertools.accumulate(image.numel() for image in images))
        flat = torch.cat([image.reshape(-1) for image in images])
        return cls(flat, torch.tensor([0, *ends[:-1]]), sizes[:, 0], sizes[:, 1])

    def __len__(self) -> int:
        return len(self.offsets)

    def select(self, rows: torch.Tensor) -> "Ragged":
        """Return some of the images in the same memory. rows: int64 (n,), on the offsets' device."""
        parts = (tensor.index_select(0, rows) for tensor in (self.offsets, self.heights, self.widths))
        whole = None if self.whole is None else self.whole.index_select(1, rows)
        return Ragged(self.flat, *parts, self.planar, whole)

    def sides(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the heights and widths of the full images, even if only parts are there."""
        return (self.heights, self.widths) if self.whole is None else (self.whole[2], self.whole[3])

    def views(self) -> list[torch.Tensor]:
        """Return each image, or the part that is there, as a view (H, W, 3).

        Waits for the device if the sizes are on it.
        """
        sizes = zip(self.offsets.tolist(), self.heights.tolist(), self.widths.tolist(), strict=True)
        return [self._view(*size) for size in sizes]

    def stacked(self) -> torch.Tensor | None:
        """Return all images as one view, (N, H, W, 3), if they have one size and are evenly spaced.

        Waits for the device if the sizes are on it.
        """
        heights, widths = set(self.heights.tolist()), set(self.widths.tolist())
        steps = set(self.offsets.diff().tolist()) or {0}
        if self.planar or not len(heights) == len(widths) == len(steps) == 1 or min(steps) < 0:
            return None
        (height,), (width,), (step,), start = heights, widths, steps, int(self.offsets[0])
        return self.flat.as_strided((len(self), height, width, 3), (step, 3 * width, 3, 1), start)

    def _view(self, offset: int, height: int, width: int) -> torch.Tensor:
        part = self.flat[offset : offset + height * width * 3]
        return part.view(3, height, width).permute(1, 2, 0) if self.planar else part.view(height, width, 3)
