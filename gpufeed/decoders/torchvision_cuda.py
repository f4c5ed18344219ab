"""torchvision.io on the GPU: nvJPEG, and the JPEG engine of those GPUs that have one."""

import warnings
from collections.abc import Callable

import torch

from gpufeed.decoders.base import Tolerance
from gpufeed.decoders.device_decoder import DeviceDecoder
from gpufeed.decoders.encoded_file import NVJPEG_KINDS
from gpufeed.decoders.fallback import Refused, isolate


class TorchvisionCudaDecoder(DeviceDecoder):
    """The list call of decode_jpeg, which returns nothing if one file of the list is bad."""

    name = "torchvision_cuda"
    needs = {"simplejpeg": "simplejpeg", "torchvision": "torchvision"}  # noqa: RUF012
    takes = NVJPEG_KINDS
    # nvJPEG repeats chroma pixels where libjpeg interpolates: on 20,000 real JPEGs of 64 x 64 pixels up to
    # 135 from Pillow, and at most 10.0 in the mean over an image (torchvision 0.26, H200).
    tolerance = Tolerance(160, 12.0)

    def open(self) -> None:
        self.decode_jpeg = self.call()
        # torch warns once in a process about read-only buffers, which decode_jpeg uses too
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.frombuffer(b"\0", dtype=torch.uint8)

    def call(self) -> Callable:
        """Return the library's decode_jpeg."""
        return self.library.io.decode_jpeg

    def decode_taken(self, files: list[bytes]) -> list[torch.Tensor | None]:
        return isolate(self._decode_batch, files)

    def fill(self, files: list[bytes], out: torch.Tensor) -> bool:
        if out.device != self.device:
            return False
        try:
            planes = self._planes(files)
        except Refused:
            return False
        out.copy_(torch.stack(planes).permute(0, 2, 3, 1))
        return True

    def _decode_batch(self, files: list[bytes]) -> list[torch.Tensor]:
        return [image.permute(1, 2, 0) for image in self._planes(files)]  # each (H, W, 3), not copied

    def _planes(self, files: list[bytes]) -> list[torch.Tensor]:
        """Return the images, (3, H, W) each; raise Refused if one file is bad."""
        encoded = [torch.frombuffer(data, dtype=torch.uint8) for data in files]
        # sync point: the JPEG engine does not wait for the stream. It may write into memory that is free for
        # the allocator although kernels queued on the current stream still read it. Memory used on other
        # streams is freed only when they are done (Tensor.record_stream).
        torch.cuda.current_stream(self.device).synchronize()
        try:
            return self.decode_jpeg(encoded, mode="RGB", device=self.device)
        except RuntimeError as error:
            raise self.refusal(error) from error
