"""JPEGs to tensors in one call: `gpufeed.decode_jpegs`."""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache

import torch

from gpufeed.core.errors import GpufeedError
from gpufeed.core.registry import load
from gpufeed.decoders.base import Decoder


def decode_jpegs(files: Sequence[bytes], device: str | torch.device | None = None) -> list[torch.Tensor]:
    """Return the images of encoded files, uint8 (H, W, 3) each, on the device.

    On a CUDA GPU this project's kernels decode baseline JPEGs of any sizes in one call. On the CPU
    libjpeg-turbo does, to the same pixels. Pillow decodes other files, such as PNG. device: by default the
    current GPU, or the CPU if there is none.

    Raises GpufeedError for a file that nobody can decode or that is no bytes, and Skip for a GPU without the
    extension.
    """
    files = list(files)
    for file in files:
        if not isinstance(file, bytes | bytearray):
            raise GpufeedError(
                f"a {type(file).__name__} among the files",
                "a list with the bytes of each file",
                "read them, such as by Path(name).read_bytes()",
            )
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    on_cuda = where.type == "cuda"
    if on_cuda and where.index is None:
        where = torch.device("cuda", torch.cuda.current_device())
    with torch.cuda.device(where) if on_cuda else nullcontext():
        found = decoder_on(where).decode_to(files, where)
    for place, outcome in enumerate(found.outcomes):
        if outcome.decoder is None:
            raise GpufeedError(
                f"file {place} of {len(files)}: {outcome.reason}", "an image", "leave it out, or repair it"
            )
    return found.images


@lru_cache(maxsize=16)
def decoder_on(device: torch.device) -> Decoder:
    """Return the decoder of a device, which is the current one."""
    name = "cuda_jpeg" if device.type == "cuda" else "simplejpeg"
    return load("decoder", name)()
