"""The base class of the decoders that leave their images on the GPU."""

import io
from abc import abstractmethod

import numpy as np
import torch
from PIL import Image

from gpufeed.core.errors import Skip
from gpufeed.decoders.base import Decoded, DeviceDecoded, Tolerance
from gpufeed.decoders.fallback import FallbackDecoder, Refused, fill_gaps
from gpufeed.decoders.image_transfer import to_device, to_host

# nvJPEG with interpolated chroma, on real JPEGs of 32 and 64 pixels: it differs from Pillow by up to 3, 0.03
# in the mean, with CUDA 13; by up to 5, 0.64 in the mean, 1.008 in that of an image, with CUDA 12
# (docs/reference/decoders.md)
NVJPEG_TOLERANCE = Tolerance(16, 1.5)


class DeviceDecoder(FallbackDecoder):
    """A decoder on the current CUDA device; `decode_taken` returns tensors for its current stream."""

    parallel = "device"

    def __init__(self, threads: int = 1):
        """Decode a trial image; raise Skip without a GPU or if that fails.

        Otherwise a library built for another GPU or driver would leave all files to Pillow.
        """
        super().__init__(threads)
        self.device = current_device(self.name)
        self.open()
        try:
            trial = self.decode_taken([trial_jpeg()])[0]
        except (RuntimeError, Refused) as error:
            raise Skip(f"Decoder {self.name} cannot decode on this GPU ({error}).") from error
        if trial is None:
            raise Skip(f"Decoder {self.name} cannot decode a small JPEG on this GPU.")

    @abstractmethod
    def open(self) -> None:
        """Set the library up on `self.device`; called once, before the first image."""

    def refusal(self, error: RuntimeError) -> Exception:
        """Return the library's error as Refused, or unchanged if it is not about a file.

        Raises torch's own error if the GPU has failed; otherwise all files would go to Pillow unnoticed.
        """
        torch.cuda.synchronize(self.device)
        return error if isinstance(error, torch.OutOfMemoryError) else Refused(str(error))

    def check_device(self, error: RuntimeError) -> None:
        """Raise the error unless `refusal` blames a file for it."""
        if not isinstance(found := self.refusal(error), Refused):
            raise found

    def decode(self, files: list[bytes]) -> Decoded:
        images = to_host(self.decode_fitting(files))
        return Decoded(*fill_gaps(self.name, images, files, self.pillow))

    def decode_to(self, files: list[bytes], device: torch.device) -> DeviceDecoded:
        if device.type == "cpu":  # by one copy
            return super().decode_to(files, device)
        on_device = self.decode_fitting(files)
        gaps = [i for i, image in enumerate(on_device) if image is None]
        filled, outcomes = fill_gaps(self.name, on_device, files, self.pillow)
        for i, image in zip(gaps, to_device([filled[i] for i in gaps], self.device), strict=True):
            filled[i] = image
        return DeviceDecoded([image if image is None else image.to(device) for image in filled], outcomes)


def current_device(decoder: str) -> torch.device:
    """Return the current CUDA device; raise Skip if there is none."""
    if not torch.cuda.is_available():
        raise Skip(
            f"Decoder {decoder} needs a CUDA GPU, and torch {torch.__version__} finds none on this node."
        )
    return torch.device("cuda", torch.cuda.current_device())


def trial_jpeg() -> bytes:
    """Return a baseline JPEG of 64 x 64 pixels, the smallest side that every hardware decoder takes."""
    buffer = io.BytesIO()
    Image.fromarray(np.full((64, 64, 3), 128, np.uint8)).save(buffer, "JPEG")
    return buffer.getvalue()
