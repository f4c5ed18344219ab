"""Whole baseline JPEGs, any mixture in a call, to RGB on a device by this project's own kernels."""

from collections.abc import Sequence

import numpy as np
import torch

from gpufeed.decoders.ragged import Ragged
from gpufeed.native.jpeg_op import decode_files


class BatchDecoder:
    """Decodes JPEGs of any sizes, samplings and tables in one call; keeps nothing from call to call.

    The extension must be loaded. Threads that each have their own stream may call it at once. Beside the
    files and the images a call takes about 1.6 times the files' bytes on the device, and at most 1 GiB.
    """

    def __init__(self, device: torch.device):
        self.device = device

    def decode(
        self, files: Sequence[bytes], windows: torch.Tensor | None = None
    ) -> tuple[Ragged, torch.Tensor]:
        """`decode_buffer` of files that are apart."""
        offsets = np.cumsum([0, *map(len, files)], dtype=np.int64)
        # torch uses page-locked memory again only after the copy that reads it
        data = torch.empty(int(offsets[-1]), dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        room = data.numpy()
        for file, start, end in zip(files, offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            room[start:end] = np.frombuffer(file, np.uint8)
        return self.decode_buffer(data, torch.from_numpy(offsets), windows)

    def decode_buffer(
        self, data: torch.Tensor, offsets: torch.Tensor, windows: torch.Tensor | None = None
    ) -> tuple[Ragged, torch.Tensor]:
        """(images, faults) of files in one buffer on the host, ready for the device's current stream.

        data: uint8 (bytes,), page-locked for a GPU, and not to be changed before what is queued on the
        stream until now has run; offsets: int64 (N + 1,), where each file begins and the last ends. faults:
        uint8 (N,) on the device, indices into jpeg_op.FAULTS: an image with one is 0 everywhere. Of the
        images the places and sizes are on the host; a file whose header is refused has height and width 0.
        windows: int32 (N, 4), what is needed of each image, as decode_files has it: the images are parts
        then, which cover their windows. Waits for nothing. Raises ValueError or TypeError for tensors that
        are not these.
        """
        on_device = data.to(self.device, non_blocking=True)
        flat, faults, places = decode_files(on_device, data, offsets, windows=windows)
        return Ragged(flat, *places[:3], whole=None if windows is None else places[3:]), faults
