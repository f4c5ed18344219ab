"""The augment `fused`: everything but rotation in one pass over the batch, by one Triton kernel.

It moves 3 bytes a pixel in and 3 itemsize out, each once: 9 at float16. The steps and options are those
of the reference (amounts.py), and so are the pixels, within rounding.
"""

from collections.abc import Sequence
from typing import Any

import torch

from gpufeed.augment import amounts
from gpufeed.augment.base import DeviceAugment, check_addresses, check_batch, require_cuda
from gpufeed.augment.fused_kernel import BLOCK, WARPS, augment_tiles
from gpufeed.core.errors import GpufeedError, Skip, one_line
from gpufeed.native import jit_toolchain
from gpufeed.system import random_draws

# About twice what runs at once (132 multiprocessors x 32), so that a large batch has a short tail, and few
# enough that a program has several tiles of its image to share the draws among.
PROGRAMS = 8192


class FusedAugment(DeviceAugment):
    """One launch a batch; a CUDA graph may capture it. The first raises Skip where nothing can compile it."""

    defaults = amounts.FUSED_DEFAULTS
    gathers = True

    def __init__(self, mean: Sequence[float], std: Sequence[float], seed: int, options: dict[str, Any]):
        """Raises Skip without a CUDA GPU, unless Triton interprets its kernels on the CPU."""
        super().__init__(mean, std, seed, options)
        amounts.check(self.options)
        if not jit_toolchain.interpreted():
            require_cuda("fused")
        scale = [1 / (255 * value) for value in std]
        shift = [-m / s for m, s in zip(mean, std, strict=True)]
        low, high = seed & random_draws.MASK, (seed >> random_draws.BITS) & random_draws.MASK
        pepper, salt = amounts.pepper_and_salt(self.options["salt_pepper"])
        self.constants = {
            "PADDING": self.options["crop_padding"],
            "FLIP_BELOW": round(self.options["flip_probability"] * 2**32),
            "BRIGHTNESS": float(self.options["brightness"]),
            "CONTRAST": float(self.options["contrast"]),
            "PIVOT": 255.0 * self.options["contrast_pivot"],
            "PEPPER": pepper,
            "SALT": salt,
            **{f"SCALE{c}": value for c, value in enumerate(scale)},
            **{f"SHIFT{c}": value for c, value in enumerate(shift)},
            "TAG": amounts.NOISE_TAG,
            "BLOCK": BLOCK,
            "num_warps": WARPS,
        }
        self.seeds = [
            amounts.signed(word) for word in (random_draws.fold(random_draws.fold(0, low), high), low, high)
        ]

    def __call__(self, images: torch.Tensor, ids: torch.Tensor, epoch: int | torch.Tensor) -> torch.Tensor:
        """images: uint8 (N, H, W, 3), ids: int64 (N,); returns (N, 3, H, W), channels_last, of `dtype`."""
        check_batch(images, ids)
        return self._launch(images, None, ids, epoch)

    def gather(
        self, store: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor, epoch: int | torch.Tensor
    ) -> torch.Tensor:
        """As __call__(store[rows], ids, epoch), without a copy of the batch.

        store: uint8 (M, H, W, 3), rows: int64 (N,), each in 0..M-1, which is not checked.
        """
        check_batch(store[: len(ids)], ids)
        if rows.dtype != torch.int64 or rows.shape != ids.shape:
            raise GpufeedError(
                f"rows {rows.dtype} {tuple(rows.shape)}",
                f"torch.int64 {tuple(ids.shape)}",
                "give one row an id",
            )
        return self._launch(store, rows, ids, epoch)

    def _launch(
        self, images: torch.Tensor, rows: torch.Tensor | None, ids: torch.Tensor, epoch: int | torch.Tensor
    ) -> torch.Tensor:
        if not jit_toolchain.interpreted():
            check_addresses(images, ids, *([] if rows is None else [rows]))
        n, (height, width) = len(ids), images.shape[1:3]
        if height * width >= 2**28:
            raise GpufeedError(
                f"images of {height} x {width} pixels", "fewer than 2**28", "use augment torch"
            )
        tiles = -(-height * width // (4 * BLOCK))
        each = tiles_each(tiles, n)
        out = torch.empty(
            (n, height, width, 3), dtype=amounts.DTYPES[self.options["dtype"]], device=ids.device
        )
        try:
            augment_tiles[(n, -(-tiles // each))](
                images,
                images if rows is None else rows,
                ids,
                out,
                epoch,
                *self.seeds,
                ROWS=rows is not None,
                EPOCH_AT=isinstance(epoch, torch.Tensor),
                WORDS=width % 4 == 0 and images.data_ptr() % 4 == 0,
                HEIGHT=height,
                WIDTH=width,
                TILES=each,
                **self.constants,
            )
        except Exception as error:  # only a failed launch asks: Triton keeps what it has compiled
            if lack := jit_toolchain.lacking_for_triton():
                raise Skip(
                    f"Augment fused is compiled by Triton on its node, which has {lack} ({one_line(error)})."
                ) from error
            raise
        return out.permute(0, 3, 1, 2)


def tiles_each(tiles: int, images: int) -> int:
    """How many of an image's tiles one program handles: a power of two, since each is a compilation."""
    each = 1
    while each < tiles and tiles * images >= 2 * each * PROGRAMS:
        each *= 2
    return each
