"""Our own CUDA kernels for baseline JPEGs: any mixture of files in one call."""

import torch

from gpufeed.core.errors import Skip
from gpufeed.decoders.base import EXACT
from gpufeed.decoders.device_decoder import DeviceDecoder
from gpufeed.decoders.encoded_file import JPEG_KINDS, read_header
from gpufeed.decoders.jpeg_batch import BatchDecoder
from gpufeed.decoders.jpeg_groups import Group, code_digest, coding_of, grouped, joined
from gpufeed.native.jpeg_pieces import PieceDecoder

SMALL = 128 * 128  # pixels below which each image has one thread, if all files of a call are of one kind


class CudaJpegDecoder(DeviceDecoder):
    """Exactly libjpeg-turbo's pixels; all but intact baseline files of one scan go to Pillow.

    Many threads decode a file. Small files that share size and tables are decoded by one thread each, many at
    once.
    """

    name = "cuda_jpeg"
    needs = {"simplejpeg": "simplejpeg"}  # noqa: RUF012
    takes = JPEG_KINDS
    tolerance = EXACT

    def open(self) -> None:
        from gpufeed.native import status

        if sentence := status(self.device).sentence:
            raise Skip(f"Decoder {self.name} needs this project's extension with CUDA kernels. {sentence}")
        self.batch = BatchDecoder(self.device)
        self.pieces = PieceDecoder(self.device)

    def decode_taken(self, files: list[bytes]) -> list[torch.Tensor | None]:
        if group := small_and_alike(files):
            images, faults = self._by_pieces(group)
        else:
            ragged, faults = self.batch.decode(files)
            images = ragged.views()
        wrong = faults.tolist()  # sync point
        return [None if fault else image for image, fault in zip(images, wrong, strict=True)]

    def fill(self, files: list[bytes], out: torch.Tensor) -> bool:
        if out.device != self.device:
            return False
        if group := small_and_alike(files):
            images, faults = self._by_pieces(group)
        else:
            ragged, faults = self.batch.decode(files)
            images = ragged.stacked()
        if images is None or images.shape != out.shape:
            return False
        out.copy_(images)
        return not faults.any().item()  # sync point

    def _by_pieces(self, group: Group) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (images, faults) of a group, queued on the current stream."""
        data, offsets = joined(group.coded)
        return self.pieces.decode(data, offsets[:-1], offsets[1:], coding_of(group.kind, self.device))

    def version(self) -> str:
        return f"{self.name} {code_digest()}"


def small_and_alike(files: list[bytes]) -> Group | None:
    """Return the group that holds all files in order; None unless they are small and of one kind."""
    header = read_header(files[0])
    if header is None or header.height * header.width >= SMALL:
        return None
    groups = grouped(files)
    return groups[0] if groups and groups[0].places == list(range(len(files))) else None
