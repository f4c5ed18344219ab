"""The augment `fused`: everything but rotation in one pass over the batch, by one Triton kernel.

uint8 (N, H, W, 3) in, floats in the same order out. Each pixel is read once, 3 bytes, and written once, 3
values: 9 bytes at float16. Steps, options and, within rounding, pixels are those of the reference
(amounts.py).

A thread handles quads of four neighbouring pixels of a row: 12 bytes, which are three words, and one block of
Philox, which is four random words. Whatever the crop, its pixels lie in at most four neighbouring 32-bit
words, which it reads and shifts. Its 12 results go through shared memory, so that neighbouring threads write
neighbouring addresses. If a row is no multiple of four pixels, or the images are not aligned to words, bytes
are read one by one (WORDS false).

It is bound by arithmetic: at 4.2 TB/s and 9 bytes a pixel an H200 has about 70 instruction slots a pixel.
Philox takes 15 of them, so one block serves four pixels. A program makes the draws of a sample once for all
its tiles.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from gpufeed.augment import amounts
from gpufeed.augment.base import DeviceAugment, check_addresses, check_batch, require_cuda
from gpufeed.core.errors import GpufeedError, Skip, one_line
from gpufeed.native import jit_toolchain
from gpufeed.system import random_draws

# Quads of a tile, two a thread, and warps of a program. Tried on an H200 (docs/lab/augments.md): 88 % of a
# copy's bandwidth; one quad a thread 85 to 87 %, one warp a program 85 %.
BLOCK = 128
WARPS = 2


@triton.jit
def mix(x):
    """random_draws.mix, in uint32."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def fold(state, value):
    """random_draws.fold, in uint32."""
    return mix(state ^ mix(value + 0x9E3779B9))


@triton.jit
def factor(state, WHICH: tl.constexpr, AMOUNT: tl.constexpr):
    """random_draws.uniform between 1 - AMOUNT and 1 + AMOUNT."""
    share = fold(state, tl.full((), WHICH, tl.uint32)).to(tl.float32) * 2.3283064365386963e-10  # 2**-32
    return (1 - AMOUNT) + share * (2 * AMOUNT)


@triton.jit
def byte(words, PLACE: tl.constexpr):
    """Return one byte of each word as float32."""
    return ((words >> (8 * PLACE)) & 0xFF).to(tl.float32)


@triton.jit
def cut(value):
    """Clamp to 0..1; in this order it is one instruction together with a preceding product or sum."""
    return tl.minimum(tl.maximum(value, 0.0), 1.0)


@triton.jit
def lit(red, green, blue, bright, CUT: tl.constexpr):
    """Apply brightness to values in 0..255 and clamp; the results are in 0..1."""
    if CUT:
        red, green, blue = cut(red * bright), cut(green * bright), cut(blue * bright)
    return red, green, blue


@triton.jit
def finish(value, contrast, offset, SCALE: tl.constexpr, SHIFT: tl.constexpr, CUT: tl.constexpr):
    """Apply contrast, salt and pepper, and normalisation to one channel from `lit`."""
    if CUT:
        return cut(value * contrast + offset) * (255 * SCALE) + SHIFT
    return value * SCALE + SHIFT


@triton.jit
def chunk(a, b, c, d):
    """Return four tensors (B,) as one (B, 4)."""
    joined = tl.join(tl.join(a, c), tl.join(b, d))  # (B, 2, 2): [[a, b], [c, d]]
    return tl.reshape(joined, (a.shape[0], 4))


@triton.jit(do_not_specialize=["epoch", "state", "key0", "key1"])
def augment_tiles(
    images,  # uint8 (M, H, W, 3)
    rows,  # int64 (N,): which image is the n-th of the batch; not read unless ROWS
    ids,  # int64 (N,)
    out,  # (N, H, W, 3), the order in memory of a channels_last (N, 3, H, W)
    epoch,  # int32, or an int64 tensor of one element if EPOCH_AT
    state,  # draws: the seed folded in, as an int32
    key0,  # the seed's low and high word, as int32
    key1,
    ROWS: tl.constexpr,
    EPOCH_AT: tl.constexpr,
    WORDS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDING: tl.constexpr,
    FLIP_BELOW: tl.constexpr,
    BRIGHTNESS: tl.constexpr,
    CONTRAST: tl.constexpr,
    PIVOT: tl.constexpr,
    PEPPER: tl.constexpr,
    SALT: tl.constexpr,
    SCALE0: tl.constexpr,
    SCALE1: tl.constexpr,
    SCALE2: tl.constexpr,
    SHIFT0: tl.constexpr,
    SHIFT1: tl.constexpr,
    SHIFT2: tl.constexpr,
    TAG: tl.constexpr,
    TILES: tl.constexpr,  # of a program
    BLOCK: tl.constexpr,
):
    CUT: tl.constexpr = BRIGHTNESS > 0 or CONTRAST > 0 or SALT > 0
    n = tl.program_id(0)
    part = tl.program_id(1)
    row = tl.load(rows + n) if ROWS else n.to(tl.int64)
    sample = tl.load(ids + n).to(tl.uint32)
    epoch_word = tl.load(epoch).to(tl.uint32) if EPOCH_AT else epoch.to(tl.uint32)

    # the draws of this sample
    drawn = fold(fold(state.to(tl.uint32), epoch_word), sample)
    top = -PADDING
    left = -PADDING
    if PADDING > 0:
        places = tl.full((), 2 * PADDING + 1, tl.uint32)
        top += tl.umulhi(fold(drawn, tl.full((), 0, tl.uint32)), places).to(tl.int32)
        left += tl.umulhi(fold(drawn, tl.full((), 1, tl.uint32)), places).to(tl.int32)
    flip = False
    if FLIP_BELOW > 0:
        flip = fold(drawn, tl.full((), 2, tl.uint32)).to(tl.int64) < FLIP_BELOW
    bright = 1 / 255
    contrast = 1.0
    offset = 0.0
    if BRIGHTNESS > 0:
        bright = factor(drawn, 3, BRIGHTNESS) * (1 / 255)
    if CONTRAST > 0:
        contrast = factor(drawn, 4, CONTRAST)
        offset = (PIVOT / 255) * (1 - contrast)

    # a loop for each direction, so that the order of pixels costs no instruction
    if flip:
        tiles(out, images, row, n, part, sample, epoch_word, key0, key1, top, left, bright, contrast, offset,
            HEIGHT, WIDTH, PADDING, PEPPER, SALT, SCALE0, SCALE1, SCALE2, SHIFT0, SHIFT1, SHIFT2, TAG,
            WORDS, CUT, TILES, BLOCK, True)  # fmt: skip
    else:
        tiles(out, images, row, n, part, sample, epoch_word, key0, key1, top, left, bright, contrast, offset,
            HEIGHT, WIDTH, PADDING, PEPPER, SALT, SCALE0, SCALE1, SCALE2, SHIFT0, SHIFT1, SHIFT2, TAG,
            WORDS, CUT, TILES, BLOCK, False)  # fmt: skip


@triton.jit
def tiles(
    out,
    images,
    row,
    n,
    part,
    sample,
    epoch_word,
    key0,
    key1,
    top,
    left,
    bright,
    contrast,
    offset,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDING: tl.constexpr,
    PEPPER: tl.constexpr,
    SALT: tl.constexpr,
    SCALE0: tl.constexpr,
    SCALE1: tl.constexpr,
    SCALE2: tl.constexpr,
    SHIFT0: tl.constexpr,
    SHIFT1: tl.constexpr,
    SHIFT2: tl.constexpr,
    TAG: tl.constexpr,
    WORDS: tl.constexpr,
    CUT: tl.constexpr,
    TILES: tl.constexpr,
    BLOCK: tl.constexpr,
    FLIP: tl.constexpr,
):
    """Augment all tiles of a program, of one image, flipped or not."""
    PIXELS: tl.constexpr = HEIGHT * WIDTH
    QUADS: tl.constexpr = (PIXELS + 3) // 4
    LAST: tl.constexpr = PIXELS * 3 // 4  # words of an image
    WHOLE: tl.constexpr = QUADS % (BLOCK * TILES) == 0
    for step in range(TILES):
        tile = part * TILES + step
        quads = tile * BLOCK + tl.arange(0, BLOCK)
        valid = quads >= 0
        if not WHOLE:
            valid = quads < QUADS
        if WORDS:
            y = quads // (WIDTH // 4) + top
            x = (quads % (WIDTH // 4)) * 4
            if FLIP:
                x = WIDTH - 4 - x
            first = left + x  # column of the leftmost of the four
            at = (y * WIDTH + first) * 3  # in bytes, from the image's first one
            word = at >> 2
            source = images.to(tl.pointer_type(tl.uint32)) + row * (PIXELS * 3 // 4) + word
            # as uint32, negative numbers are large: one comparison checks both ends
            some = valid & (y.to(tl.uint32) < HEIGHT) & ((first + 3).to(tl.uint32) < WIDTH + 3)
            w0 = tl.load(source, mask=some & (word.to(tl.uint32) < LAST), other=0)
            w1 = tl.load(source + 1, mask=some & ((word + 1).to(tl.uint32) < LAST), other=0)
            w2 = tl.load(source + 2, mask=some & ((word + 2).to(tl.uint32) < LAST), other=0)
            if PADDING > 0:
                shift = (((left * 3) & 3) * 8).to(tl.uint64)  # rows and quads are whole words
                w3 = tl.load(source + 3, mask=some & ((word + 3).to(tl.uint32) < LAST), other=0)
                w0, w1, w2 = shifted(w0, w1, shift), shifted(w1, w2, shift), shifted(w2, w3, shift)
            r0, g0, b0 = byte(w0, 0), byte(w0, 1), byte(w0, 2)
            r1, g1, b1 = byte(w0, 3), byte(w1, 0), byte(w1, 1)
            r2, g2, b2 = byte(w1, 2), byte(w1, 3), byte(w2, 0)
            r3, g3, b3 = byte(w2, 1), byte(w2, 2), byte(w2, 3)
            light0, light1, light2, light3 = bright, bright, bright, bright
            if PADDING > 0:
                if CUT:  # no light outside of the image
                    light0 = tl.where(first.to(tl.uint32) < WIDTH, bright, 0.0)
                    light1 = tl.where((first + 1).to(tl.uint32) < WIDTH, bright, 0.0)
                    light2 = tl.where((first + 2).to(tl.uint32) < WIDTH, bright, 0.0)
                    light3 = tl.where((first + 3).to(tl.uint32) < WIDTH, bright, 0.0)
                else:
                    r0, g0, b0 = inside(first, r0, g0, b0, WIDTH)
                    r1, g1, b1 = inside(first + 1, r1, g1, b1, WIDTH)
                    r2, g2, b2 = inside(first + 2, r2, g2, b2, WIDTH)
                    r3, g3, b3 = inside(first + 3, r3, g3, b3, WIDTH)
            r0, g0, b0 = lit(r0, g0, b0, light0, CUT)
            r1, g1, b1 = lit(r1, g1, b1, light1, CUT)
            r2, g2, b2 = lit(r2, g2, b2, light2, CUT)
            r3, g3, b3 = lit(r3, g3, b3, light3, CUT)
            if FLIP:
                r0, g0, b0, r3, g3, b3 = r3, g3, b3, r0, g0, b0
                r1, g1, b1, r2, g2, b2 = r2, g2, b2, r1, g1, b1
        else:
            source = images + row * (PIXELS * 3)
            r0, g0, b0 = read(source, quads * 4, top, left, FLIP, HEIGHT, WIDTH)
            r1, g1, b1 = read(source, quads * 4 + 1, top, left, FLIP, HEIGHT, WIDTH)
            r2, g2, b2 = read(source, quads * 4 + 2, top, left, FLIP, HEIGHT, WIDTH)
            r3, g3, b3 = read(source, quads * 4 + 3, top, left, FLIP, HEIGHT, WIDTH)
            r0, g0, b0 = lit(r0, g0, b0, bright, CUT)
            r1, g1, b1 = lit(r1, g1, b1, bright, CUT)
            r2, g2, b2 = lit(r2, g2, b2, bright, CUT)
            r3, g3, b3 = lit(r3, g3, b3, bright, CUT)

        offset0, offset1, offset2, offset3 = offset, offset, offset, offset
        if SALT > 0:
            block = quads.to(tl.uint32)
            zero = tl.zeros((BLOCK,), tl.uint32)
            key = key0.to(tl.uint32), key1.to(tl.uint32)
            n0, n1, n2, n3 = philox(block, zero + sample, zero + epoch_word, zero + TAG, key[0], key[1])
            offset0 = stained(n0, offset, PEPPER, SALT)
            offset1 = stained(n1, offset, PEPPER, SALT)
            offset2 = stained(n2, offset, PEPPER, SALT)
            offset3 = stained(n3, offset, PEPPER, SALT)

        kind = out.dtype.element_ty
        r0 = finish(r0, contrast, offset0, SCALE0, SHIFT0, CUT).to(kind)
        g0 = finish(g0, contrast, offset0, SCALE1, SHIFT1, CUT).to(kind)
        b0 = finish(b0, contrast, offset0, SCALE2, SHIFT2, CUT).to(kind)
        r1 = finish(r1, contrast, offset1, SCALE0, SHIFT0, CUT).to(kind)
        g1 = finish(g1, contrast, offset1, SCALE1, SHIFT1, CUT).to(kind)
        b1 = finish(b1, contrast, offset1, SCALE2, SHIFT2, CUT).to(kind)
        r2 = finish(r2, contrast, offset2, SCALE0, SHIFT0, CUT).to(kind)
        g2 = finish(g2, contrast, offset2, SCALE1, SHIFT1, CUT).to(kind)
        b2 = finish(b2, contrast, offset2, SCALE2, SHIFT2, CUT).to(kind)
        r3 = finish(r3, contrast, offset3, SCALE0, SHIFT0, CUT).to(kind)
        g3 = finish(g3, contrast, offset3, SCALE1, SHIFT1, CUT).to(kind)
        b3 = finish(b3, contrast, offset3, SCALE2, SHIFT2, CUT).to(kind)

        head, middle, tail = chunk(r0, g0, b0, r1), chunk(g1, b1, r2, g2), chunk(b2, r3, g3, b3)
        values = tl.join(tl.join(head, tail), tl.join(middle, middle))  # (BLOCK, 4 values, 2, 2)
        values = tl.permute(tl.reshape(values, (BLOCK, 4, 4)), (0, 2, 1))  # three chunks, and one unused
        values = tl.reshape(values, (BLOCK * 4, 4))
        # chunks in one dimension, so that neighbouring threads write neighbouring chunks
        chunks = tl.arange(0, BLOCK * 4)[:, None]
        quad = tile * BLOCK + chunks // 4
        place = quad * 12 + (chunks % 4) * 4 + tl.arange(0, 4)[None, :]
        written = chunks % 4 < 3
        if not WHOLE:
            written = written & (quad < QUADS)
        if PIXELS % 4 != 0:  # the last quad of an image is incomplete
            written = written & (place < PIXELS * 3)
        tl.store(out + n.to(tl.int64) * (PIXELS * 3) + place, values, mask=written)


@triton.jit
def philox(c0, c1, c2, c3, k0, k1):
    """random_draws.philox, in uint32.

    Its 64-bit products are one instruction each. Triton's own version computes their halves separately, which
    takes 1.5 times as many instructions.
    """
    for _ in tl.static_range(10):
        even = c0.to(tl.uint64) * 0xD2511F53
        odd = c2.to(tl.uint64) * 0xCD9E8D57
        c0 = (odd >> 32).to(tl.uint32) ^ c1 ^ k0
        c1 = odd.to(tl.uint32)
        c2 = (even >> 32).to(tl.uint32) ^ c3 ^ k1
        c3 = even.to(tl.uint32)
        k0 = k0 + 0x9E3779B9
        k1 = k1 + 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
def shifted(word, next_word, shift):
    """Return 32 bits of two neighbouring words, from bit `shift` on."""
    both = (next_word.to(tl.uint64) << 32) | word.to(tl.uint64)
    return (both >> shift).to(tl.uint32)


@triton.jit
def read(source, pixels, top, left, FLIP: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Read red, green and blue of pixels of the window byte by byte; 0 outside the image."""
    x = pixels % WIDTH
    y = pixels // WIDTH + top
    x = left + ((WIDTH - 1 - x) if FLIP else x)
    inside = (pixels < HEIGHT * WIDTH) & (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH)
    at = source + (y * WIDTH + x) * 3
    red = tl.load(at, mask=inside, other=0).to(tl.float32)
    green = tl.load(at + 1, mask=inside, other=0).to(tl.float32)
    blue = tl.load(at + 2, mask=inside, other=0).to(tl.float32)
    return red, green, blue


@triton.jit
def stained(words, offset, PEPPER: tl.constexpr, SALT: tl.constexpr):
    """Return the offset, or one that makes any pixel black or white, since contrast is at most 2."""
    return tl.where(words < PEPPER, -4.0, tl.where(words >= 4294967296 - SALT, 4.0, offset))


@triton.jit
def inside(x, red, green, blue, WIDTH: tl.constexpr):
    """Return the pixel in column x, black outside of the image."""
    there = x.to(tl.uint32) < WIDTH
    return tl.where(there, red, 0.0), tl.where(there, green, 0.0), tl.where(there, blue, 0.0)


# About twice as many as run at once (132 multiprocessors x 32), so that a large batch has a short tail; few
# enough that a program handles several tiles of an image, which share its draws.
PROGRAMS = 8192


class FusedAugment(DeviceAugment):
    """One launch a batch, which a CUDA graph may capture. The first one raises Skip if Triton cannot
    compile it.
    """

    defaults = amounts.FUSED_DEFAULTS
    gathers = True

    def __init__(self, mean: Sequence[float], std: Sequence[float], seed: int, options: dict[str, Any]):
        """Raise Skip without a CUDA GPU, unless Triton interprets its kernels on the CPU."""
        super().__init__(mean, std, seed, options)
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
        """Return (N, 3, H, W), channels_last, of `dtype`. images: uint8 (N, H, W, 3), ids: int64 (N,)."""
        check_batch(images, ids)
        return self._launch(images, None, ids, epoch)

    def gather(
        self, store: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor, epoch: int | torch.Tensor
    ) -> torch.Tensor:
        """Return __call__(store[rows], ids, epoch) without a copy of the batch.

        store: uint8 (M, H, W, 3), rows: int64 (N,), each in 0..M-1, which is not checked.
        """
        check_batch(store[: len(ids)], ids)
        if rows.dtype != torch.int64 or rows.shape != ids.shape:
            raise GpufeedError(
                f"rows {rows.dtype} {tuple(rows.shape)}",
                f"torch.int64 {tuple(ids.shape)}",
                "pass one row for each id",
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
        except Exception as error:  # checked only after a failed launch, since Triton caches compiled kernels
            if lack := jit_toolchain.lacking_for_triton():
                raise Skip(
                    f"Augment fused is compiled by Triton on its node, which has {lack} ({one_line(error)})."
                ) from error
            raise
        return out.permute(0, 3, 1, 2)


def tiles_each(tiles: int, images: int) -> int:
    """Return how many tiles of an image a program handles: a power of two, as each number is compiled."""
    each = 1
    while each < tiles and tiles * images >= 2 * each * PROGRAMS:
        each *= 2
    return each
