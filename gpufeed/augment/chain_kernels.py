"""The Numba CUDA kernels of augment `chain`, one step each.

Pixel values are float32 in 0..255, and a batch is (N, V) with V = H W 3. blockIdx.x is the image.

- A kernel of one value for one value (grid: (N, V / (THREADS EACH))): a thread has four values, THREADS
  apart, and reads all of them before it writes the first. Neighbouring threads then read neighbouring
  addresses, four reads are under way at once, and the output may be the input.
- A kernel that works on pixels (grid: (N, H W / TILE)) makes a tile of them in shared memory, from which
  it is written value by value: a thread that wrote the three values of its own pixel would leave gaps
  between the addresses of its neighbours.

With NUMBA_ENABLE_CUDASIM=1 the same kernels run on the CPU on numpy arrays.
"""

import math

import numpy as np

from gpufeed.augment.numba_cuda import cuda

THREADS = 256  # of a block
EACH = 4  # values a thread
TILE = 4 * THREADS  # pixels
TILE_VALUES = 3 * TILE

ZERO, HALF, ONE, WHITE = np.float32(0), np.float32(0.5), np.float32(1), np.float32(255)
HALF_TURN = np.float32(math.pi / 180)
MASK = np.uint64(2**32 - 1)
WORD = np.uint64(32)
GOLDEN = np.uint64(0x9E3779B9)
MIX_1, MIX_2 = np.uint64(0x7FEB352D), np.uint64(0x846CA68B)
MULTIPLY_0, MULTIPLY_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
WEYL_0, WEYL_1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
S15, S16 = np.uint64(15), np.uint64(16)
# what is added to an index of an array: with Python's own 1 it would be signed, and checked for below 0
NEXT, NEXT_BUT_ONE, PIXEL = np.uint64(1), np.uint64(2), np.uint64(3)
THIRD, THIRD_SHIFT = np.uint64(0xAAAAAAAB), np.uint64(33)
UNIT = np.float32(2.0**-32)


@cuda.jit(device=True)
def mix(x):
    """draws.mix; x and the result are uint64 below 2**32."""
    x = x ^ (x >> S16)
    x = (x * MIX_1) & MASK
    x = x ^ (x >> S15)
    x = (x * MIX_2) & MASK
    return x ^ (x >> S16)


@cuda.jit(device=True)
def fold(state, value):
    """draws.fold, in uint64 below 2**32."""
    return mix(state ^ mix((value + GOLDEN) & MASK))


@cuda.jit(device=True)
def cut(value):
    """The value, 0 if it is lower, 255 if it is higher."""
    return min(max(value, ZERO), WHITE)


@cuda.jit
def draw_kernel(ids, epoch, state, padding, flip_below, angle, brightness, contrast, drawn):
    """A thread a sample: all that is drawn for it.

    ids int64 (N,), epoch int64 (1,), state: the seed folded in; the last three numbers are amounts, float32.
    drawn float32 (7, N): top, left, flip, cosine and sine of the angle, brightness, contrast.
    """
    n = cuda.grid(1)
    if n >= ids.shape[0]:
        return
    seed = np.uint64(state) & MASK
    own = fold(fold(seed, np.uint64(epoch[0]) & MASK), np.uint64(ids[n]) & MASK)
    places = np.uint64(2 * padding + 1)
    drawn[0, n] = np.float32((fold(own, np.uint64(0)) * places) >> WORD)
    drawn[1, n] = np.float32((fold(own, np.uint64(1)) * places) >> WORD)
    drawn[2, n] = np.float32(1) if fold(own, np.uint64(2)) < np.uint64(flip_below) else ZERO
    one, two = ONE, np.float32(2)
    turn = np.float32(fold(own, np.uint64(5))) * UNIT * (two * angle) - angle
    drawn[3, n] = math.cos(turn * HALF_TURN)
    drawn[4, n] = math.sin(turn * HALF_TURN)
    drawn[5, n] = np.float32(fold(own, np.uint64(3))) * UNIT * (two * brightness) + (one - brightness)
    drawn[6, n] = np.float32(fold(own, np.uint64(4))) * UNIT * (two * contrast) + (one - contrast)


@cuda.jit(device=True)
def write(tile, result, n, first):
    """The tile's values to image n from value `first` on, as far as the image goes."""
    cuda.syncthreads()
    size = result.shape[1]
    own = cuda.threadIdx.x
    while own < TILE_VALUES:
        if first + own < size:
            result[n, first + own] = tile[own]
        own += THREADS


@cuda.jit
def window_kernel(images, drawn, padding, height, width, values):
    """Crop and flip, and uint8 to float32. images, values: (N, V); drawn: of draw_kernel. Grid of tiles."""
    tile = cuda.shared.array(TILE_VALUES, np.float32)
    n = cuda.blockIdx.x
    top, left = np.int32(drawn[0, n]) - padding, np.int32(drawn[1, n]) - padding
    flip = drawn[2, n] > ZERO
    per_row = ONE / np.float32(width)
    first = cuda.blockIdx.y * TILE
    for k in range(TILE // THREADS):
        own = k * THREADS + cuda.threadIdx.x
        y = row_of(first + own, per_row)
        x = first + own - y * width
        row = y + top
        column = (width - 1 - x if flip else x) + left
        a, b, c = ZERO, ZERO, ZERO
        if row >= 0 and row < height and column >= 0 and column < width:
            at = np.uint64((row * width + column) * 3)
            a = np.float32(images[n, at])
            b = np.float32(images[n, at + NEXT])
            c = np.float32(images[n, at + NEXT_BUT_ONE])
        tile[3 * own], tile[3 * own + 1], tile[3 * own + 2] = a, b, c
    write(tile, values, n, 3 * first)


@cuda.jit(device=True)
def row_of(pixel, per_row):
    """pixel // width from per_row = 1 / width, float32, without a division of integers.

    Exact for images of fewer than 2**20 pixels: half a pixel from the end of a row is more than rounding.
    """
    return np.int64((np.float32(pixel) + HALF) * per_row)


@cuda.jit
def rotation_kernel(values, cosines, sines, height, width, turned):
    """Bilinear rotation about the centre, black outside. Grid of tiles.

    values, turned: (N, V), not the same memory; cosines, sines: (N,).
    """
    tile = cuda.shared.array(TILE_VALUES, np.float32)
    n = cuda.blockIdx.x
    cosine, sine = cosines[n], sines[n]
    middle_x, middle_y = np.float32(width - 1) * HALF, np.float32(height - 1) * HALF
    per_row = ONE / np.float32(width)
    first = cuda.blockIdx.y * TILE
    for k in range(TILE // THREADS):
        own = k * THREADS + cuda.threadIdx.x
        y = row_of(first + own, per_row)
        x = first + own - y * width
        dx, dy = np.float32(x) - middle_x, np.float32(y) - middle_y
        from_x = cosine * dx - sine * dy + middle_x
        from_y = sine * dx + cosine * dy + middle_y
        floor_x, floor_y = math.floor(from_x), math.floor(from_y)
        left, top = np.int32(floor_x), np.int32(floor_y)
        right_share, low_share = from_x - np.float32(floor_x), from_y - np.float32(floor_y)
        left_share, top_share = ONE - right_share, ONE - low_share
        at = np.int64(top * width + left) * 3
        below = at + 3 * width
        a, b, c = ZERO, ZERO, ZERO
        if top >= 0 and top < height - 1 and left >= 0 and left < width - 1:  # most pixels: no more tests
            high, low = np.uint64(at), np.uint64(below)
            a, b, c = add(values, n, high, left_share * top_share, a, b, c)
            a, b, c = add(values, n, high + PIXEL, right_share * top_share, a, b, c)
            a, b, c = add(values, n, low, left_share * low_share, a, b, c)
            a, b, c = add(values, n, low + PIXEL, right_share * low_share, a, b, c)
        else:
            for row in range(2):
                for column in range(2):
                    inside_rows = top + row >= 0 and top + row < height
                    if inside_rows and left + column >= 0 and left + column < width:
                        share = low_share if row else top_share
                        share = share * right_share if column else share * left_share
                        start = np.uint64((below if row else at) + 3 * column)
                        a, b, c = add(values, n, start, share, a, b, c)
        tile[3 * own], tile[3 * own + 1], tile[3 * own + 2] = a, b, c
    write(tile, turned, n, 3 * first)


@cuda.jit(device=True)
def add(values, n, at, share, a, b, c):
    """A share of the three values of a pixel, added to a, b and c. at: uint64."""
    red, green, blue = values[n, at], values[n, at + NEXT], values[n, at + NEXT_BUT_ONE]
    return a + red * share, b + green * share, c + blue * share


@cuda.jit
def brightness_kernel(values, factors, result):
    """value * factor, cut to 0..255. values, result: (N, V), result may be values; factors (N,)."""
    n = cuda.blockIdx.x
    size = values.shape[1]
    factor = factors[n]
    at = cuda.blockIdx.y * (THREADS * EACH) + cuda.threadIdx.x
    if at + 3 * THREADS < size:
        a, b = values[n, at], values[n, at + THREADS]
        c, d = values[n, at + 2 * THREADS], values[n, at + 3 * THREADS]
        result[n, at] = cut(a * factor)
        result[n, at + THREADS] = cut(b * factor)
        result[n, at + 2 * THREADS] = cut(c * factor)
        result[n, at + 3 * THREADS] = cut(d * factor)
    else:
        while at < size:
            result[n, at] = cut(values[n, at] * factor)
            at += THREADS


@cuda.jit
def contrast_kernel(values, factors, pivot, result):
    """(value - pivot) * factor + pivot, cut to 0..255. pivot: float32; the rest as brightness_kernel."""
    n = cuda.blockIdx.x
    size = values.shape[1]
    factor = factors[n]
    shift = pivot * (np.float32(1) - factor)
    at = cuda.blockIdx.y * (THREADS * EACH) + cuda.threadIdx.x
    if at + 3 * THREADS < size:
        a, b = values[n, at], values[n, at + THREADS]
        c, d = values[n, at + 2 * THREADS], values[n, at + 3 * THREADS]
        result[n, at] = cut(a * factor + shift)
        result[n, at + THREADS] = cut(b * factor + shift)
        result[n, at + 2 * THREADS] = cut(c * factor + shift)
        result[n, at + 3 * THREADS] = cut(d * factor + shift)
    else:
        while at < size:
            result[n, at] = cut(values[n, at] * factor + shift)
            at += THREADS


@cuda.jit(device=True)
def philox(c0, c1, c2, c3, k0, k1):
    """philox.philox, on uint32."""
    for _ in range(10):
        even, odd = MULTIPLY_0 * np.uint64(c0), MULTIPLY_1 * np.uint64(c2)
        c0 = np.uint32(odd >> WORD) ^ c1 ^ k0
        c1 = np.uint32(odd & MASK)
        c2 = np.uint32(even >> WORD) ^ c3 ^ k1
        c3 = np.uint32(even & MASK)
        k0 = np.uint32((np.uint64(k0) + np.uint64(WEYL_0)) & MASK)
        k1 = np.uint32((np.uint64(k1) + np.uint64(WEYL_1)) & MASK)
    return c0, c1, c2, c3


@cuda.jit(device=True)
def stain(word, pepper, salt_from):
    """What a random word makes of a pixel: 0 nothing, 1 pepper, 2 salt."""
    if np.uint64(word) < np.uint64(pepper):
        return 1
    return 2 if np.uint64(word) >= np.uint64(salt_from) else 0


@cuda.jit(device=True)
def stained(value, code):
    if code == 0:
        return value
    return ZERO if code == 1 else WHITE


@cuda.jit
def salt_pepper_kernel(values, ids, epoch, key0, key1, tag, pepper, salt_from, result):
    """Pixels with words below pepper become 0, and from salt_from on 255. Grid of tiles.

    values, result: (N, V), result may be values; ids int64 (N,), epoch int64 (1,). A thread makes the words
    of four neighbouring pixels, one block of Philox, and leaves what they mean in shared memory; values are
    then read and written as in the other kernels, twelve a thread.
    """
    codes = cuda.shared.array(TILE, np.uint8)
    n = cuda.blockIdx.x
    size = values.shape[1]
    t = cuda.threadIdx.x
    quad = cuda.blockIdx.y * THREADS + t
    sample, when = np.uint32(np.uint64(ids[n]) & MASK), np.uint32(np.uint64(epoch[0]) & MASK)
    k0, k1 = np.uint32(np.uint64(key0) & MASK), np.uint32(np.uint64(key1) & MASK)
    w0, w1, w2, w3 = philox(np.uint32(quad), sample, when, np.uint32(tag), k0, k1)
    codes[4 * t] = stain(w0, pepper, salt_from)
    codes[4 * t + 1] = stain(w1, pepper, salt_from)
    codes[4 * t + 2] = stain(w2, pepper, salt_from)
    codes[4 * t + 3] = stain(w3, pepper, salt_from)
    cuda.syncthreads()
    first = cuda.blockIdx.y * (12 * THREADS)
    for part in range(3):
        own = part * 4 * THREADS + t  # of this block's values
        at = first + own
        if at + 3 * THREADS < size:
            a, b = values[n, at], values[n, at + THREADS]
            c, d = values[n, at + 2 * THREADS], values[n, at + 3 * THREADS]
            result[n, at] = stained(a, codes[third(own)])
            result[n, at + THREADS] = stained(b, codes[third(own + THREADS)])
            result[n, at + 2 * THREADS] = stained(c, codes[third(own + 2 * THREADS)])
            result[n, at + 3 * THREADS] = stained(d, codes[third(own + 3 * THREADS)])
        else:
            for k in range(4):
                if at + k * THREADS < size:
                    result[n, at + k * THREADS] = stained(
                        values[n, at + k * THREADS], codes[third(own + k * THREADS)]
                    )


@cuda.jit(device=True)
def third(at):
    """at // 3, exact below 2**32."""
    return (np.uint64(at) * THIRD) >> THIRD_SHIFT
