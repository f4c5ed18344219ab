"""nvImageCodec on the GPU: nvJPEG, the JPEG engine and libjpeg-turbo behind one call."""

import torch

from gpufeed.decoders.device_decoder import NVJPEG_TOLERANCE, DeviceDecoder
from gpufeed.decoders.encoded_file import NVJPEG_KINDS, PNG_KINDS
from gpufeed.decoders.image_transfer import together
from gpufeed.decoders.nvimgcodec_cpu import NEEDS, OPTIONS, decode_streams


class NvImageCodecDecoder(DeviceDecoder):
    """All backends of the library, which picks one for each image."""

    name = "nvimgcodec"
    needs = NEEDS
    takes = NVJPEG_KINDS | PNG_KINDS
    tolerance = NVJPEG_TOLERANCE

    def open(self) -> None:
        self.codec = self.library.Decoder(
            device_id=self.device.index, max_num_cpu_threads=self.threads, options=OPTIONS
        )

    def fill(self, files: list[bytes], out: torch.Tensor) -> bool:
        if out.device != self.device:
            return False
        stream = torch.cuda.current_stream(self.device)
        images = decode_streams(self.library, self.codec, files, cuda_stream=stream.cuda_stream)
        if any(image is None or tuple(image.shape) != tuple(out.shape[1:]) for image in images):
            return False
        torch.stack([torch.from_dlpack(image) for image in images], out=out)
        stream.synchronize()  # sync point: as below
        return True

    def decode_taken(self, files: list[bytes]) -> list[torch.Tensor | None]:
        stream = torch.cuda.current_stream(self.device)
        images = decode_streams(self.library, self.codec, files, cuda_stream=stream.cuda_stream)
        # copies, since the library reuses its memory without regard to work that torch has queued on it
        copies = together([None if image is None else torch.from_dlpack(image) for image in images])
        stream.synchronize()  # sync point: the originals must outlive the copies
        return copies
