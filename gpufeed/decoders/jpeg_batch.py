"""Whole baseline JPEGs, any mixture in a call, to RGB on a device by this project's own kernels."""

from collections.abc import Sequence

import numpy as np
import torch

from gpufeed.decoders.ragged import Ragged
from gpufeed.native.jpeg_op import decode_files


class BatchDecoder:
    """A decoder of JPEGs of any sizes, samplings and tables in one call, without state.

    The extension must be loaded. Threads with their own streams may call it at once. Beside the files and the
    images a call needs about 1.6 times the files' bytes on the device, at most 1 GiB.
    """

    def __init__(self, device: torch.device):
        self.device = device

    def decode(
        self, files: Sequence[bytes], windows: torch.Tensor | None = None
    ) -> tuple[Ragged, torch.Tensor]:
        """Copy the files to one buffer and decode them as `decode_buffer` does."""
        offsets = np.cumsum([0, *map(len, files)], dtype=np.int64)
        # torch reuses page-locked memory only after the copy that reads it
        data = torch.empty(int(offsets[-1]), dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        room = data.numpy()
        for file, start, end in zip(files, offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            room[start:end] = np.frombuffer(file, np.uint8)
        return self.decode_buffer(data, torch.from_numpy(offsets), windows)

    def decode_buffer(
        self, data: torch.Tensor, offsets: torch.Tensor, windows: torch.Tensor | None = None
    ) -> tuple[Ragged, torch.Tensor]:
        """Return (images, faults) of files in one buffer on the host, ready for the device's current stream.

        data: uint8 (bytes,), page-locked for a GPU; it must stay unchanged until the work queued so far has
        run. offsets: int64 (N + 1,), where each file begins and the last ends. windows: int32 (N, 4), what is
        needed of each image, as in decode_files; then the images are parts that cover their windows. faults:
        uint8 (N,) on the device, indices into jpeg_op.FAULTS; an image with a fault is all 0. Places and
        sizes of the images are on the host; a file whose header is refused has height and width 0. Does not
        wait. Raises ValueError or TypeError for other tensors.
        """
        on_device = data.to(self.device, non_blocking=True)
        flat, faults, places = decode_files(on_device, data, offsets, windows=windows)
        return Ragged(flat, *places[:3], whole=None if windows is None else places[3:]), faults
