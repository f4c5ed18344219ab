"""DALI on the CPU: one call decodes on its own threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpufeed.decoders.base import EXACT
from gpufeed.decoders.fallback import Refused, ResizingDecoder, isolate

if TYPE_CHECKING:
    import numpy as np
    import torch

    from gpufeed.decoders.dali_pipeline import DecodePipeline

NEEDS = {"simplejpeg": "simplejpeg", "nvidia.dali": "nvidia-dali-cuda120 or nvidia-dali-cuda130"}


class DaliCpuDecoder(ResizingDecoder):
    """libjpeg-turbo behind fn.decoders.image, without a GPU or a driver."""

    name = "dali_cpu"
    needs = NEEDS
    parallel = "own threads"
    tolerance = EXACT  # on 1,110 real JPEGs, DALI 2.4.0 against Pillow 13.0.0

    def __init__(self, threads: int = 1, resize: tuple[int, int] | None = None):
        super().__init__(threads, resize)
        self.pipeline = self.new_pipeline()

    def new_pipeline(self, **more) -> DecodePipeline:
        """Return a pipeline that decodes as this decoder does. more: `work` of DecodePipeline."""
        from gpufeed.decoders.dali_pipeline import DecodePipeline

        return DecodePipeline(None, self.threads, resize=self.resize, device="cpu", **more)

    def fill(self, files: list[bytes], out: torch.Tensor) -> bool:
        return out.device.type == "cpu" and self.fill_by(self.pipeline, files, out)

    def fill_by(self, pipeline: DecodePipeline, files: list[bytes], out: torch.Tensor, **values) -> bool:
        """Fill `out` by a pipeline of `new_pipeline`; return whether it could. values: as in `fill`."""
        try:
            return pipeline.fill(files, out, values)
        except RuntimeError:
            return False

    def decode_taken(self, files: list[bytes]) -> list[np.ndarray | None]:
        return isolate(self._decode_batch, files)

    def _decode_batch(self, files: list[bytes]) -> list[np.ndarray]:
        from torch import device

        try:
            return [image.numpy() for image in self.pipeline.decode(files, device("cpu"))]
        except RuntimeError as error:
            raise Refused(str(error)) from error
