"""The Triton kernel of `resample`: windows of images of any sizes, resized, in one launch.

A program makes a tile of one sample, a thread eight pixels of it. For each pixel it sums the rows under the
filter, and for each row the pixels under it, in Pillow's arithmetic: weights are integers in units of 2**-22,
sums are int32, and a row's sum is rounded to an integer before the rows are summed. So a byte needs no
conversion and one multiplication. Bytes that neighbours share are in the L1 cache.

It is bound by instructions, not bytes: docs/lab/pixels.md has the two numbers, which are predictions so far.
"""

import triton
import triton.language as tl

TILE, WARPS = 32, 4  # sides of a tile, warps of a program


@triton.jit
def field(table, WHICH: tl.constexpr, count, n):
    """Return one field of sample n. table: int64 (fields, count)."""
    return tl.load(table + WHICH * count + n)


@triton.jit
def number(table, WHICH: tl.constexpr, count, n):
    """Return a field that holds the bits of a float64."""
    return field(table, WHICH, count, n).to(tl.float64, bitcast=True)


@triton.jit
def filters(begin, length, resized, kept, side):
    """Return the filters of one axis. kept: indices into the `resized` pixels, an int64 tensor.

    They are the first pixel under each filter, the distance of its middle from the filter's, 1 / half the
    filter's width, the most pixels under a filter, and the end of the part.
    """
    scale = length / resized.to(tl.float64)
    support = tl.maximum(scale, 1.0)
    end = tl.maximum(tl.minimum(tl.ceil(begin + length).to(tl.int32), side.to(tl.int32)), 1)
    low = tl.minimum(tl.maximum(tl.floor(begin).to(tl.int32), 0), end - 1)
    centres = begin + (kept.to(tl.float64) + 0.5) * scale
    starts = tl.floor(centres - support + 0.5).to(tl.int32)
    starts = tl.minimum(tl.maximum(starts, low), end - 1)
    distances = (starts.to(tl.float64) + 0.5 - centres).to(tl.float32)
    return starts, distances, (1 / support).to(tl.float32), tl.ceil(2 * support).to(tl.int32), end


@triton.jit
def triangle(starts, distances, slope, end, step):
    """Return the weights of the pixels `step` after the first ones, not normalised; 0 outside the part."""
    height = tl.maximum(1 - tl.abs(distances + step) * slope, 0.0)
    return tl.where(starts + step < end, height, 0.0)


@triton.jit
def factors(starts, distances, slope, end, taps):
    """Return the factors that make the weights of each filter sum up to 2**22."""
    total = tl.zeros_like(distances)
    for step in range(taps):
        total += triangle(starts, distances, slope, end, step)
    return 4194304 / total


@triton.jit
def whole(weights, factor):
    """Round weights to integers."""
    return (weights * factor + 0.5).to(tl.int32)


@triton.jit(do_not_specialize=["count"])
def resample_tiles(
    out,  # uint8 (N, SIZE, SIZE, 3)
    table,  # int64 (15, N): resample.source_fields, resample.window_fields
    count,  # N
    SIZE: tl.constexpr,
    INTERLEAVED: tl.constexpr,  # the rows of all images are pixels of three bytes without gaps
    TILE: tl.constexpr,
):
    ACROSS: tl.constexpr = (SIZE + TILE - 1) // TILE
    HALF: tl.constexpr = 2097152  # of 2**22
    program = tl.program_id(0)
    n = program // (ACROSS * ACROSS)
    # x comes first: Triton spreads the lanes of a warp over the first dimension if none is contiguous
    x = program % ACROSS * TILE + tl.arange(0, TILE)[:, None]
    y = program // ACROSS % ACROSS * TILE + tl.arange(0, TILE)[None, :]

    kept_x = tl.minimum(x, SIZE - 1)
    kept_x = tl.where(field(table, 14, count, n) != 0, SIZE - 1 - kept_x, kept_x)
    left, across, slope, taps, end = filters(
        number(table, 7, count, n), number(table, 9, count, n), field(table, 11, count, n),
        field(table, 13, count, n) + kept_x, field(table, 5, count, n),
    )  # fmt: skip
    top, down, row_slope, row_taps, row_end = filters(
        number(table, 6, count, n), number(table, 8, count, n), field(table, 10, count, n),
        field(table, 12, count, n) + tl.minimum(y, SIZE - 1), field(table, 4, count, n),
    )  # fmt: skip
    factor = factors(left, across, slope, end, taps)
    row_factor = factors(top, down, row_slope, row_end, row_taps)

    source = field(table, 0, count, n).to(tl.pointer_type(tl.uint8))
    row_stride, channel_stride = field(table, 1, count, n), field(table, 3, count, n)
    column_stride = field(table, 2, count, n).to(tl.int32)
    if INTERLEAVED:
        column_stride = 3
        channel_stride = 1
    red = tl.full((TILE, TILE), HALF, tl.int32)
    green = red
    blue = red
    for row in range(row_taps):
        row_weight = whole(triangle(top, down, row_slope, row_end, row), row_factor)
        line = source + tl.minimum(top + row, row_end - 1) * row_stride
        row_red = tl.full((TILE, TILE), HALF, tl.int32)
        row_green = row_red
        row_blue = row_red
        for column in range(taps):
            weight = whole(triangle(left, across, slope, end, column), factor)
            pixel = line + tl.minimum(left + column, end - 1) * column_stride
            row_red += tl.load(pixel).to(tl.int32) * weight
            row_green += tl.load(pixel + channel_stride).to(tl.int32) * weight
            row_blue += tl.load(pixel + 2 * channel_stride).to(tl.int32) * weight
        red += (row_red >> 22) * row_weight
        green += (row_green >> 22) * row_weight
        blue += (row_blue >> 22) * row_weight

    place = out + n.to(tl.int64) * (SIZE * SIZE * 3) + (y * SIZE + x) * 3
    written = (y < SIZE) & (x < SIZE)
    tl.store(place, (red >> 22).to(tl.uint8), written)
    tl.store(place + 1, (green >> 22).to(tl.uint8), written)
    tl.store(place + 2, (blue >> 22).to(tl.uint8), written)
