"""torchcodec on the GPU: nvJPEG, and the JPEG engine of those GPUs that have one."""

from collections.abc import Callable

import torch

from gpufeed.decoders.encoded_file import without_exif
from gpufeed.decoders.torchcodec_cpu import TORCHCODEC, require_decode_jpeg
from gpufeed.decoders.torchvision_cuda import TorchvisionCudaDecoder


class TorchcodecCudaDecoder(TorchvisionCudaDecoder):
    """The list call of its decode_jpeg, which is torchvision's, without its rotation by Exif tags."""

    name = "torchcodec_cuda"
    needs = {"simplejpeg": "simplejpeg", "torchcodec": TORCHCODEC}  # noqa: RUF012

    def call(self) -> Callable:
        require_decode_jpeg(self.name, self.library)
        return self.library.decoders.decode_jpeg

    def _planes(self, files: list[bytes]) -> list[torch.Tensor]:
        return super()._planes([without_exif(data) for data in files])
