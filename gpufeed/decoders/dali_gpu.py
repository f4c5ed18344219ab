"""DALI on the GPU: a share of the files by its JPEG engines, the rest by threads and nvJPEG's kernels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from gpufeed.decoders.dali_cpu import NEEDS
from gpufeed.decoders.device_decoder import NVJPEG_TOLERANCE, DeviceDecoder
from gpufeed.decoders.encoded_file import JPEG_KINDS, NVJPEG_KINDS, PNG_KINDS, SCALED_GRAY, read_header
from gpufeed.decoders.fallback import ResizingDecoder, isolate
from gpufeed.system.devices import jpeg_engines

if TYPE_CHECKING:
    from gpufeed.decoders.dali_pipeline import DecodePipeline

# Loader dali_gpu on an H100 with 16 cores (docs/lab/decoding.md, tests/bench/dali_engines.py): files of 7 kB
# load 1.6 times as fast without the engines, of 24 kB equally fast, of 86 kB 1.9 times as fast with this
# share.
ENGINES_FROM, SHARE = 32_000, 0.65


def share_of_engines(size: float, engines: int | None) -> float:
    """Return DALI's `hw_decoder_load` for files of this mean size in bytes on a GPU with JPEG engines.

    engines: how many there are, None if unknown; on a GPU without any, DALI ignores the share.
    """
    return SHARE if engines != 0 and size >= ENGINES_FROM else 0.0


# Bytes a thread that DALI reserves on the device and, twice, on the host: by default, and in NVIDIA's
# ImageNet example for the largest image there.
LARGEST = 6430, 5980  # height, width
DEVICE_BYTES, HOST_BYTES = (16 * 2**20, 211_025_920), (8 * 2**20, 140_544_512)


def size_for_engines(files: list[bytes]) -> float | None:
    """Return the mean size of the files in bytes, None without any; 0 if the engines would get one wrong."""
    kinds = [(header.kind, len(data)) for data in files if (header := read_header(data)) is not None]
    if any(kind == SCALED_GRAY for kind, _ in kinds):
        return 0
    return sum(size for _, size in kinds) / len(kinds) if kinds else None


class DaliGpuDecoder(ResizingDecoder, DeviceDecoder):
    """fn.decoders.image on `mixed`, with chroma interpolated as in libjpeg.

    Without a call of `expect`, the files of the first call say how large files are.
    """

    name = "dali_gpu"
    needs = NEEDS
    tolerance = NVJPEG_TOLERANCE

    def open(self) -> None:
        self.engines = jpeg_engines(self.device)
        self.use(0.0)
        self.chosen = False  # that share was for the trial image alone

    def use(self, share: float) -> None:
        """Have the JPEG engines decode this share of the files from now on, 0 to 1.

        Unless it is 0, grayscale files with sampling factors, which the engines get wrong, go to Pillow.
        """
        self.share, self.chosen = share, True
        self.takes = (NVJPEG_KINDS if share else JPEG_KINDS) | PNG_KINDS
        self.pipeline = self.new_pipeline()

    def make_room(self, height: int, width: int) -> None:
        """Have later pipelines allocate memory for images of at most these sides when they are built.

        The amount is that of NVIDIA's example, scaled by the largest image, and at least DALI's default.
        """
        height, width = min(height, LARGEST[0]), min(width, LARGEST[1])
        share = height * width / math.prod(LARGEST)
        device, host = (max(usual, round(most * share)) for usual, most in (DEVICE_BYTES, HOST_BYTES))
        self.pipeline.options |= {
            "device_memory_padding": device,
            "host_memory_padding": host,
            "preallocate_width_hint": width,
            "preallocate_height_hint": height,
        }

    @property
    def settings(self) -> dict[str, float | None]:
        return {"hw_decoder_load": self.share, "jpeg_engines": self.engines}

    def expect(self, size: float) -> None:
        self.use(share_of_engines(size, self.engines))

    def look_at(self, files: list[bytes]) -> None:
        """Prepare for files like these, unless a share is chosen already."""
        if not self.chosen and (size := size_for_engines(files)) is not None:
            self.expect(size)

    def takes_all(self, files: list[bytes], size: tuple[int, int]) -> bool:
        self.look_at(files)
        return super().takes_all(files, size)

    def decode_fitting(self, files: list[bytes]) -> list[torch.Tensor | None]:
        self.look_at(files)
        return super().decode_fitting(files)

    def new_pipeline(self, **more) -> DecodePipeline:
        """Return a pipeline that decodes as this decoder does. more: `work` of DecodePipeline."""
        from gpufeed.decoders.dali_pipeline import DecodePipeline

        return DecodePipeline(
            self.device.index,
            self.threads,
            resize=self.resize,
            device="mixed",
            jpeg_fancy_upsampling=True,
            hw_decoder_load=self.share,
            **more,
        )

    def fill(self, files: list[bytes], out: torch.Tensor) -> bool:
        return out.device == self.device and self.fill_by(self.pipeline, files, out)

    def fill_by(self, pipeline: DecodePipeline, files: list[bytes], out: torch.Tensor, **values) -> bool:
        """Fill `out` by a pipeline of `new_pipeline`; return whether it could. values: as in `fill`."""
        try:
            return pipeline.fill(files, out, values)
        except RuntimeError as error:
            self.check_device(error)
            return False

    def decode_taken(self, files: list[bytes]) -> list[torch.Tensor | None]:
        return isolate(self._decode_batch, files)

    def _decode_batch(self, files: list[bytes]) -> list[torch.Tensor]:
        try:
            return self.pipeline.decode(files, self.device)
        except RuntimeError as error:
            raise self.refusal(error) from error
