"""Our own CUDA kernels for baseline JPEGs: a thread an image, many images of the same tables in one call."""

import torch

from gpufeed.core.errors import Skip
from gpufeed.decoders.base import EXACT
from gpufeed.decoders.device_decoder import DeviceDecoder
from gpufeed.decoders.encoded_file import JPEG_KINDS
from gpufeed.decoders.jpeg_groups import Group, code_digest, coding_of, grouped, joined
from gpufeed.native.jpeg_pieces import PieceDecoder


class CudaJpegDecoder(DeviceDecoder):
    """libjpeg-turbo's pixels exactly; other than sound baseline files without restarts go to Pillow.

    An image is decoded by one thread, bit by bit: many small files at once are what it is for, and few
    large ones are slow.
    """

    name = "cuda_jpeg"
    needs = {"simplejpeg": "simplejpeg"}  # noqa: RUF012
    takes = JPEG_KINDS
    tolerance = EXACT

    def open(self) -> None:
        from gpufeed.native import status

        if sentence := status(self.device).sentence:
            raise Skip(f"Decoder {self.name} needs this project's extension with CUDA kernels. {sentence}")
        self.pieces = PieceDecoder(self.device)

    def decode_taken(self, files: list[bytes]) -> list[torch.Tensor | None]:
        images: list[torch.Tensor | None] = [None] * len(files)
        queued = [(group, *self._queue(group)) for group in grouped(files)]
        if not queued:
            return images
        faults = iter(torch.cat([faults for *_, faults in queued]).tolist())  # sync point
        for group, decoded, _ in queued:
            for place, image in zip(group.places, decoded, strict=True):
                images[place] = None if next(faults) else image
        return images

    def fill(self, files: list[bytes], out: torch.Tensor) -> bool:
        if out.device != self.device:
            return False
        groups = grouped(files)
        if sum(len(group.places) for group in groups) != len(files):
            return False
        faults = []
        for group in groups:
            decoded, fault = self._queue(group)
            if len(groups) == 1:
                out.copy_(decoded)
            else:
                places = torch.tensor(group.places, pin_memory=True).to(self.device, non_blocking=True)
                out.index_copy_(0, places, decoded)
            faults.append(fault.any())
        return not torch.stack(faults).any().item()  # sync point

    def _queue(self, group: Group) -> tuple[torch.Tensor, torch.Tensor]:
        """(images, faults) of a group, queued on the current stream."""
        data, offsets = joined(group.coded)
        return self.pieces.decode(data, offsets[:-1], offsets[1:], coding_of(group.kind, self.device))

    def version(self) -> str:
        return f"{self.name} {code_digest()}"
