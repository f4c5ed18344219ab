"""Strips on the CPU: one long call of libjpeg-turbo a strip, in threads, since it releases the GIL."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from gpufeed.core.errors import GpufeedError, import_or_skip
from gpufeed.decoders.base import Tolerance
from gpufeed.decoders.simplejpeg import decode_jpeg
from gpufeed.stores.strip_backends.base import StripBackend, rows_of
from gpufeed.stores.strips_store import Strip, StripsInfo


def decode_strip(data, strip: Strip, fancy: bool = True, out: np.ndarray | None = None) -> np.ndarray:
    """Return the images of a strip, uint8 (N, H, W, 3), decoded into `out` (contiguous, that shape) if given.

    With fancy=False every image equals its file decoded the same way. With fancy=True the top and bottom row
    of neighbouring images may differ (4:2:0 and 4:4:0 only), since their colour is smoothed over the seam.
    Raises GpufeedError for bytes that are not this strip.
    """
    if out is not None and (out.shape != strip.shape or out.dtype != np.uint8 or not out.flags.c_contiguous):
        raise ValueError(f"found {out.dtype} {out.shape}; expected contiguous uint8 {strip.shape}")
    count, height, width, channels = strip.shape
    tall = None if out is None else out.reshape(count * height, width, channels)
    try:
        rows = decode_jpeg(data, fancy, tall)
    except ValueError as error:
        raise damaged(strip, str(error)) from error
    if rows.shape != (count * height, width, channels):
        raise damaged(strip, f"decoded to {rows.shape}")
    return rows.reshape(strip.shape)


def damaged(strip: Strip, found: str) -> GpufeedError:
    """Return the error for a strip whose bytes have changed."""
    return StripsInfo.wrong(
        f"the strip at byte {strip.offset} is damaged: {found}", f"a JPEG of uint8 {strip.shape}"
    )


class CpuStrips(StripBackend):
    """Strips decoded into host memory, pinned if the batch belongs on a GPU, and copied there at once."""

    name = "cpu"
    # Seam rows differ by up to 91 on the real 64 x 64 JPEGs, by 5.1 in the mean over such a row, and an
    # image has two of them; the first and last row count for more the smaller an image is.
    tolerance = Tolerance(140, 4.0)
    seams = True

    def __init__(self, device: torch.device, threads: int):
        super().__init__(device, threads)
        self.library = import_or_skip("Decoder strips", "simplejpeg", "simplejpeg")
        self.pool = ThreadPoolExecutor(threads)
        self.staging: torch.Tensor | None = None

    def decode_into(
        self, encoded: Sequence[np.ndarray], strips: Sequence[Strip], out: torch.Tensor
    ) -> list[int]:

        host = out if out.device.type == "cpu" else self._staging(out)
        rows = host.numpy()

        def decode(data: np.ndarray, strip: Strip, where: slice) -> bool:
            try:
                decode_strip(data, strip, out=rows[where])
            except GpufeedError:
                return False
            return True

        done = list(self.pool.map(decode, encoded, strips, rows_of(strips)))
        if host is not out:
            out.copy_(host)  # waits, so that the pinned memory can be used again
        return [place for place, fine in enumerate(done) if not fine]

    def _staging(self, out: torch.Tensor) -> torch.Tensor:
        """Return pinned memory of the batch's shape; it is kept for the next batch, since pinning is slow."""
        if self.staging is None or len(self.staging) < len(out) or self.staging.shape[1:] != out.shape[1:]:
            self.staging = torch.empty(out.shape, dtype=out.dtype, pin_memory=True)
        return self.staging[: len(out)]

    def version(self) -> str:
        return f"strips by simplejpeg {self.library.__version__}"
