"""Strips on the CPU: one long call of libjpeg-turbo a strip, in threads, since it gives up the lock."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from gpufeed.core.errors import GpufeedError
from gpufeed.decoders.base import Tolerance, need_module
from gpufeed.stores.strip_backends.base import StripBackend, rows_of
from gpufeed.stores.strips_store import Strip


class CpuStrips(StripBackend):
    """Decodes into host memory, pinned if the batch belongs on a GPU, and copies it there once."""

    name = "cpu"
    # Seam rows differ by up to 91 on the real 64 x 64 JPEGs, by 5.1 in the mean over such a row, and an
    # image has two of them; the first and last row count for more the smaller an image is.
    tolerance = Tolerance(140, 4.0)
    seams = True

    def __init__(self, device: torch.device, threads: int):
        super().__init__(device, threads)
        need_module("strips", "simplejpeg", "simplejpeg")
        self.pool = ThreadPoolExecutor(threads)
        self.staging: torch.Tensor | None = None

    def decode_into(
        self, encoded: Sequence[np.ndarray], strips: Sequence[Strip], out: torch.Tensor
    ) -> list[int]:
        from gpufeed.stores.strips_decode import decode_strip

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
        """Pinned memory of the batch's shape, kept for the next batch, since pinning takes long."""
        if self.staging is None or len(self.staging) < len(out) or self.staging.shape[1:] != out.shape[1:]:
            self.staging = torch.empty(out.shape, dtype=out.dtype, pin_memory=True)
        return self.staging[: len(out)]

    def version(self) -> str:
        import simplejpeg

        return f"strips by simplejpeg {simplejpeg.__version__}"
