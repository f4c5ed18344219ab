"""Strips by nvJPEG, through torchvision's list call."""

from collections.abc import Sequence

import numpy as np
import torch

from gpufeed.core.errors import Skip, import_or_skip
from gpufeed.decoders.base import Tolerance
from gpufeed.decoders.fallback import Refused, isolate
from gpufeed.stores.strip_backends.base import StripBackend, rows_of, tall, trial_strip
from gpufeed.stores.strips_store import Strip


class TorchvisionStrips(StripBackend):
    """Strips by nvJPEG, which repeats chroma pixels; each image has exactly its own file's pixels."""

    name = "torchvision_cuda"
    tolerance = Tolerance(160, 12.0)  # that of the decoder with the same name
    seams = False

    def __init__(self, device: torch.device, threads: int):
        super().__init__(device, threads)
        self.library = import_or_skip("Decoder strips by torchvision_cuda", "torchvision", "torchvision")
        data, strip = trial_strip()
        try:
            refused = self.decode_into(
                [data], [strip], torch.empty(strip.shape, dtype=torch.uint8, device=device)
            )
        except RuntimeError as error:
            raise Skip(f"torchvision cannot decode JPEGs on this GPU ({error}).") from error
        if refused:
            raise Skip("torchvision cannot decode a small strip on this GPU.")

    def decode_into(
        self, encoded: Sequence[np.ndarray], strips: Sequence[Strip], out: torch.Tensor
    ) -> list[int]:
        # sync point: the engine does not wait for the stream, and could overwrite memory still being read
        torch.cuda.current_stream(self.device).synchronize()
        planes = isolate(self._decode_list, [torch.from_numpy(data) for data in encoded])  # each (3, rows, W)
        refused = []
        for place, (plane, where) in enumerate(zip(planes, rows_of(strips), strict=True)):
            if plane is None:
                refused.append(place)
            else:
                tall(out[where]).copy_(plane.permute(1, 2, 0))
        return refused

    def _decode_list(self, encoded: list[torch.Tensor]) -> list[torch.Tensor]:
        try:
            return self.library.io.decode_jpeg(encoded, mode="RGB", device=self.device)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            torch.cuda.synchronize(self.device)  # raises its own error if the GPU has failed
            raise Refused(str(error)) from error

    def version(self) -> str:
        return f"strips by torchvision {self.library.__version__}"
