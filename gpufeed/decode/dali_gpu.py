"""DALI on the GPU: Huffman decoding on its threads, the rest by nvJPEG's kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gpufeed.decode.base import Tolerance
from gpufeed.decode.dali_cpu import NEEDS
from gpufeed.decode.device import DeviceDecoder
from gpufeed.decode.fallback import isolate
from gpufeed.decode.resizing import ResizingDecoder

if TYPE_CHECKING:
    from gpufeed.decode.dali_pipeline import DecodePipeline


class DaliGpuDecoder(ResizingDecoder, DeviceDecoder):
    """fn.decoders.image on `mixed`, with interpolated chroma as libjpeg has it."""

    name = "dali_gpu"
    needs = NEEDS
    # on 22,000 real JPEGs of 64 x 64 pixels up to 3, and 0.03 in the mean over all (DALI 2.4, H200)
    tolerance = Tolerance(16, 1.0)

    def open(self) -> None:
        from nvidia.dali.plugin.pytorch import feed_ndarray

        self.copy_into = feed_ndarray
        self.use(0.0)

    def use(self, share: float) -> None:
        """From now on the JPEG engines decode this share of the files, 0 to 1; where there are none DALI does
        without."""
        self.share = share
        self.pipeline = self.new_pipeline()

    def new_pipeline(self, **more) -> DecodePipeline:
        """A pipeline that decodes as this decoder; more: `graph` and `inputs` of DecodePipeline."""
        from gpufeed.decode.dali_pipeline import DecodePipeline

        return DecodePipeline(
            self.device.index,
            self.threads,
            resize=self.resize,
            device="mixed",
            jpeg_fancy_upsampling=True,
            hw_decoder_load=self.share,
            **more,
        )

    def fill(self, files: list[bytes], out: torch.Tensor) -> bool:
        return out.device == self.device and self.fill_by(self.pipeline, files, out)

    def fill_by(self, pipeline: DecodePipeline, files: list[bytes], out: torch.Tensor, **values) -> bool:
        """Whether a pipeline of `new_pipeline` could fill `out`; values: of DecodePipeline.fill."""
        try:
            return pipeline.fill(files, out, values)
        except RuntimeError as error:
            self.check_device(error)
            return False

    def decode_taken(self, files: list[bytes]) -> list[torch.Tensor | None]:
        return isolate(self._decode_batch, files)

    def _decode_batch(self, files: list[bytes]) -> list[torch.Tensor]:
        try:
            return self.pipeline.decode(files, self._tensors)
        except RuntimeError as error:
            raise self.refusal(error) from error

    def _tensors(self, output) -> list[torch.Tensor]:
        """Copies of the images of a TensorListGPU, each (H, W, 3), queued on the current stream."""
        if output.is_dense_tensor():
            images = list(self._copy(output.as_tensor()).unbind(0))  # from (N, H, W, 3)
        else:
            images = [self._copy(output[i]) for i in range(len(output))]
        torch.cuda.current_stream(self.device).synchronize()  # sync point: DALI reuses its memory next run
        return images

    def _copy(self, tensor) -> torch.Tensor:
        copy = torch.empty(tensor.shape(), dtype=torch.uint8, device=self.device)
        return self.copy_into(tensor, copy, cuda_stream=torch.cuda.current_stream(self.device))

    def version(self) -> str:
        import nvidia.dali

        return f"{self.name} {nvidia.dali.__version__}"
