"""Strips by the JPEG engines of the GPU, through nvImageCodec."""

from collections.abc import Sequence

import numpy as np
import torch

from gpufeed.core.errors import Skip, import_or_skip
from gpufeed.decoders.base import Tolerance
from gpufeed.stores.strip_backends.base import StripBackend, rows_of, tall, trial_strip
from gpufeed.stores.strips_store import Strip


class NvImageCodecStrips(StripBackend):
    """Strips by the hardware backend alone, whose pixels are within one step of libjpeg's.

    Grayscale and colour are decoded in a call each: on an H200 these took 1.2 and 11.5 ms, one call with both
    17 to 20 ms.
    """

    name = "nvimgcodec"
    tolerance = Tolerance(140, 4.0)  # seam rows: up to 68, and 0.56 in the mean over an image of 64 rows
    seams = True

    def __init__(self, device: torch.device, threads: int):
        super().__init__(device, threads)
        packages = "nvidia-nvimgcodec-cu12 or nvidia-nvimgcodec-cu13"
        self.library = import_or_skip("Decoder strips by nvimgcodec", "nvidia.nvimgcodec", packages)
        index = torch.cuda.current_device() if device.index is None else device.index
        engine = self.library.Backend(self.library.HW_GPU_ONLY, load_hint=1.0)
        self.codec = self.library.Decoder(device_id=index, max_num_cpu_threads=threads, backends=[engine])
        self.params = self.library.DecodeParams(
            apply_exif_orientation=False, color_spec=self.library.SRGB, sample_format=self.library.I_RGB
        )
        data, strip = trial_strip()
        if self.decode_into([data], [strip], torch.empty(strip.shape, dtype=torch.uint8, device=device)):
            raise Skip(
                "Strips by nvimgcodec need a GPU with JPEG engines, and this one decodes none by them."
            )

    def decode_into(
        self, encoded: Sequence[np.ndarray], strips: Sequence[Strip], out: torch.Tensor
    ) -> list[int]:
        where, stream = rows_of(strips), torch.cuda.current_stream(self.device)
        refused: list[int] = []
        for kind in {strip.components for strip in strips}:
            places = [place for place, strip in enumerate(strips) if strip.components == kind]
            images = self.codec.decode(
                [self.library.CodeStream(encoded[place]) for place in places],
                params=self.params,
                cuda_stream=stream.cuda_stream,
            )
            refused += [place for place, image in zip(places, images, strict=True) if image is None]
            decoded = [torch.from_dlpack(image) for image in images if image is not None]  # each (rows, W, 3)
            whole = len(decoded) == len(places) == places[-1] - places[0] + 1
            if whole:  # one copy for all of them
                torch.cat(decoded, out=tall(out[where[places[0]].start : where[places[-1]].stop]))
            else:
                kept = [place for place in places if place not in refused]
                for place, image in zip(kept, decoded, strict=True):
                    tall(out[where[place]]).copy_(image)
            stream.synchronize()  # sync point: the library may reuse its memory only after the copies
        return sorted(refused)

    def version(self) -> str:
        return f"strips by nvimgcodec {self.library.__version__}"
