"""DALI as a loader: its pipeline, fed with the bytes of each batch; augment `dali` becomes a part of it."""

import io

import numpy as np
import torch
from PIL import Image

from gpufeed.augment.dali import DaliAugment
from gpufeed.errors import GpufeedError
from gpufeed.loaders.base import LoadRequest
from gpufeed.loaders.files import FileBatch
from gpufeed.loaders.streaming import StreamingLoader
from gpufeed.loaders.transfer import empty_batch


class DaliLoader(StreamingLoader):
    """Decoded batches, or with augment `dali` augmented ones, float32 (N, 3, H, W), from one pipeline."""

    def __init__(self, request: LoadRequest):
        super().__init__(request)
        self.augment: DaliAugment | None = request.sample_transform
        self.pipeline = None  # decoder and augment in one, if there is an augment

    def check_transform(self) -> None:
        if not isinstance(self.request.sample_transform, DaliAugment):
            super().check_transform()

    def open(self) -> None:
        super().open()
        if self.augment is not None:
            self.pipeline = self.library.new_pipeline(graph=self.augment.graph, inputs=self.augment.inputs)

    def close(self) -> None:
        super().close()
        self.pipeline = None

    def pixels(self, files: FileBatch, epoch: int, device: torch.device) -> torch.Tensor:
        if self.augment is None:
            return super().pixels(files, epoch, device)
        height, width, channels = self.shape
        shape = (len(files.ids), channels, *self.augment.output_size(height, width))
        out = empty_batch(shape, torch.float32, device, self.request)
        values = self.augment.values(files.ids, epoch)
        taken = self.library.takes_all(files.encoded, (height, width))
        if taken and self.library.fill_by(self.pipeline, files.encoded, out, **values):
            return out
        # a file that DALI does not take: all of them go in as PNG, which loses nothing
        decoded = super().pixels(files, epoch, device).cpu().numpy()
        if not self.library.fill_by(self.pipeline, [png(image) for image in decoded], out, **values):
            raise GpufeedError(
                f"DALI takes no PNG of {height} x {width} pixels",
                "an augmented batch",
                "use augment none or torch",
            )
        return out


class DaliCpuLoader(DaliLoader):
    """DALI on the CPU, on the request's threads."""

    decoder = "dali_cpu"


class DaliGpuLoader(DaliLoader):
    """DALI with Huffman decoding on the request's threads and the rest on the GPU."""

    decoder = "dali_gpu"


def png(image: np.ndarray) -> bytes:
    """A uint8 (H, W, 3) image as a PNG file, hardly compressed."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
