"""The Numba CUDA kernels of augment `chain`, one step each.

Pixel values are float32 in 0..255, and a batch is (N, V) with V = H W 3. blockIdx.x is the image.

- An elementwise kernel (grid: (N, V / (THREADS EACH))): a thread has four values, THREADS apart, and reads
all of them before it writes the first. Neighbouring threads then read neighbouring addresses, four reads are
in flight at once, and the output may be the input. - Salt and pepper (grid: (N, H W / TILE)) works on pixels
and keeps a code for each in shared memory. - A kernel that moves pixels (grid: (N, H / ..._ROWS), flat arrays
(N V,)) gives each warp whole rows. Indices are cut to 32 bits by I32 after each step, since Numba's own
64-bit ones cost twice as much; a batch has fewer than 2**32 values.

With NUMBA_ENABLE_CUDASIM=1 the same kernels run on the CPU on numpy arrays.
"""

import math

import numba
import numpy as np

from gpufeed.augment.numba_cuda import cuda, jit_within

THREADS = 256  # of a block
EACH = 4  # values a thread
TILE = 4 * THREADS  # pixels
WARPS = THREADS // 32
PARTS = WARPS * 3 * 32
WINDOW_ROWS, TURN_ROWS = 32, 16  # of a block
SIMULATED = bool(numba.config.ENABLE_CUDASIM)

ZERO, HALF, ONE, WHITE = np.float32(0), np.float32(0.5), np.float32(1), np.float32(255)
HALF_TURN = np.float32(math.pi / 180)
MASK = np.uint64(2**32 - 1)
WORD = np.uint64(32)
GOLDEN = np.uint64(0x9E3779B9)
MIX_1, MIX_2 = np.uint64(0x7FEB352D), np.uint64(0x846CA68B)
MULTIPLY_0, MULTIPLY_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
WEYL_0, WEYL_1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
S15, S16 = np.uint64(15), np.uint64(16)
# added to an index of an array; with Python's own 1 it would be signed and checked for values below 0
NEXT = np.uint64(1)
I32, U32 = np.int32, np.uint32
THREE, LANES = np.int32(3), np.int32(32)
THIRD, THIRD_SHIFT = np.uint64(0xAAAAAAAB), np.uint64(33)
UNIT = np.float32(2.0**-32)


@cuda.jit(device=True)
def mix(x):
    """random_draws.mix; x and the result are uint64 below 2**32."""
    x = x ^ (x >> S16)
    x = (x * MIX_1) & MASK
    x = x ^ (x >> S15)
    x = (x * MIX_2) & MASK
    return x ^ (x >> S16)


@cuda.jit(device=True)
def fold(state, value):
    """random_draws.fold, in uint64 below 2**32."""
    return mix(state ^ mix((value + GOLDEN) & MASK))


@cuda.jit(device=True)
def cut(value):
    """Return the value clamped to 0..255."""
    return min(max(value, ZERO), WHITE)


@cuda.jit
def draw_kernel(ids, epoch, state, padding, flip_below, angle, brightness, contrast, drawn):
    """Make all draws of a sample, one thread for each.

    ids int64 (N,), epoch int64 (1,), state: the seed folded in; angle, brightness and contrast: amounts,
    float32. drawn float32 (7, N): top, left, flip, cosine and sine of the angle, brightness, contrast.
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


@cuda.jit
def window_kernel(images, drawn, padding, height, width, values):
    """Crop, flip and convert uint8 to float32. images, values: (N V,); drawn: of draw_kernel. Grid of rows.

    A thread handles one value of a row, computes its column once, and goes down the rows.
    """
    n = cuda.blockIdx.x
    padding, height, width = I32(padding), I32(height), I32(width)
    top, left = I32(I32(drawn[0, n]) - padding), I32(I32(drawn[1, n]) - padding)
    flip = drawn[2, n] > ZERO
    lane, warp = I32(cuda.threadIdx.x & 31), I32(cuda.threadIdx.x >> 5)
    row = I32(width * THREE)
    start = I32(I32(n) * I32(height * row))
    first = I32(I32(cuda.blockIdx.y) * I32(WINDOW_ROWS))
    last = I32(min(I32(first + I32(WINDOW_ROWS)), height))
    step = I32(I32(WARPS) * row)
    j = lane
    while j < row:
        x = I32(third(j))
        channel = I32(j - I32(x * THREE))
        x = I32(I32(I32(width - 1) - x) if flip else x)
        x = I32(x + left)
        there = U32(x) < U32(width)
        column = I32(I32(I32(x * THREE) + channel) + start)
        y = I32(first + warp)
        while I32(y + I32(3 * WARPS)) < last:  # four rows, so that four reads are in flight
            y0 = I32(y + top)
            y1, y2, y3 = I32(y0 + I32(WARPS)), I32(y0 + I32(2 * WARPS)), I32(y0 + I32(3 * WARPS))
            a, b, c, d = ZERO, ZERO, ZERO, ZERO
            if there and U32(y0) < U32(height):
                a = np.float32(images[place(I32(y0 * row) + column)])
            if there and U32(y1) < U32(height):
                b = np.float32(images[place(I32(y1 * row) + column)])
            if there and U32(y2) < U32(height):
                c = np.float32(images[place(I32(y2 * row) + column)])
            if there and U32(y3) < U32(height):
                d = np.float32(images[place(I32(y3 * row) + column)])
            at = I32(I32(y * row) + I32(start + j))
            values[place(at)] = a
            values[place(at + step)] = b
            values[place(at + I32(step * 2))] = c
            values[place(at + I32(step * 3))] = d
            y = I32(y + I32(4 * WARPS))
        while y < last:
            y0 = I32(y + top)
            a = ZERO
            if there and U32(y0) < U32(height):
                a = np.float32(images[place(I32(y0 * row) + column)])
            values[place(I32(y * row) + I32(start + j))] = a
            y = I32(y + I32(WARPS))
        j = I32(j + LANES)


@cuda.jit(device=True)
def place(at):
    """Return an array index from its lower 32 bits."""
    return np.uint64(U32(I32(at)))


@cuda.jit(device=True)
def sync_warp():
    if SIMULATED:  # the simulator has no warps
        cuda.syncthreads()
    else:
        cuda.syncwarp()


@jit_within(32)  # all warps of a multiprocessor: 68 % of a copy's bandwidth, 62 % with 40
def rotation_kernel(values, cosines, sines, height, width, turned):
    """Rotate about the centre, bilinear, black outside. Grid of rows.

    values, turned: (N V,), not the same memory; cosines, sines: (N,). A warp handles whole rows: it puts 32
    pixels into its part of shared memory, from which they are written value by value.
    """
    part = cuda.shared.array(PARTS, np.float32)
    n = cuda.blockIdx.x
    height, width = I32(height), I32(width)
    lane, warp = I32(cuda.threadIdx.x & 31), I32(cuda.threadIdx.x >> 5)
    cosine, sine = cosines[n], sines[n]
    start = I32(I32(n) * I32(I32(height * width) * THREE))
    middle_x, middle_y = np.float32(I32(width - 1)) * HALF, np.float32(I32(height - 1)) * HALF
    base = I32(warp * I32(3 * 32))
    first = I32(I32(cuda.blockIdx.y) * I32(TURN_ROWS))
    last = I32(min(I32(first + I32(TURN_ROWS)), height))
    y = I32(first + warp)
    while y < last:
        dy = np.float32(y) - middle_y
        row_x, row_y = middle_x - sine * dy, middle_y + cosine * dy
        x = I32(0)
        while x < width:
            dx = np.float32(I32(x + lane)) - middle_x
            a, b, c = between(values, start, cosine * dx + row_x, sine * dx + row_y, width, height)
            own = U32(I32(base + I32(lane * THREE)))
            part[own], part[own + U32(1)], part[own + U32(2)] = a, b, c
            sync_warp()
            count = I32(I32(width - x) * THREE)
            at = place(I32(start + lane) + I32(I32(y * width + x) * THREE))
            own = U32(I32(base + lane))
            if lane < count:
                turned[at] = part[own]
            if I32(lane + LANES) < count:
                turned[at + np.uint64(32)] = part[own + U32(32)]
            if I32(lane + I32(64)) < count:
                turned[at + np.uint64(64)] = part[own + U32(64)]
            sync_warp()
            x = I32(x + LANES)
        y = I32(y + I32(WARPS))


@cuda.jit(device=True)
def between(values, start, from_x, from_y, width, height):
    """Return the three values at (from_x, from_y) of the image at `start` (mod 2**32), black outside.

    All four neighbours are read, with weight 0 for those outside, since branches cost more.
    """
    left, top = I32(math.floor(from_x)), I32(math.floor(from_y))
    right, low = I32(left + 1), I32(top + 1)
    right_share, low_share = from_x - np.float32(left), from_y - np.float32(top)
    left_share, top_share = ONE - right_share, ONE - low_share
    left_share = left_share if U32(left) < U32(width) else ZERO
    right_share = right_share if U32(right) < U32(width) else ZERO
    top_share = top_share if U32(top) < U32(height) else ZERO
    low_share = low_share if U32(low) < U32(height) else ZERO
    row = I32(width * THREE)
    left, right = I32(clamped(left, width) * THREE), I32(clamped(right, width) * THREE)
    top, low = I32(I32(clamped(top, height) * row) + start), I32(I32(clamped(low, height) * row) + start)
    p, q, r, s = place(top + left), place(top + right), place(low + left), place(low + right)
    share_p, share_q = left_share * top_share, right_share * top_share
    share_r, share_s = left_share * low_share, right_share * low_share
    a = values[p] * share_p + values[q] * share_q + values[r] * share_r + values[s] * share_s
    p, q, r, s = p + NEXT, q + NEXT, r + NEXT, s + NEXT
    b = values[p] * share_p + values[q] * share_q + values[r] * share_r + values[s] * share_s
    p, q, r, s = p + NEXT, q + NEXT, r + NEXT, s + NEXT
    c = values[p] * share_p + values[q] * share_q + values[r] * share_r + values[s] * share_s
    return a, b, c


@cuda.jit(device=True)
def clamped(place, size):
    """Return the place clamped to 0..size - 1."""
    return I32(min(max(place, I32(0)), I32(size - 1)))


@cuda.jit
def brightness_kernel(values, factors, result):
    """Compute value * factor, clamped to 0..255. values, result: (N, V), may be the same; factors (N,)."""
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
    """Compute (value - pivot) * factor + pivot, clamped to 0..255. pivot: float32; see brightness_kernel."""
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
    """random_draws.philox, on uint32."""
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
    """Return the code of a random word: 0 leaves the pixel, 1 is pepper, 2 is salt."""
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
    """Set pixels with words below pepper to 0, and with words from salt_from on to 255. Grid of tiles.

    values, result: (N, V), may be the same; ids int64 (N,), epoch int64 (1,). A thread makes the words of
    four neighbouring pixels, one block of Philox, and puts their codes into shared memory. Values are then
    read and written as in the other kernels, twelve a thread.
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
    """Return at // 3, exact below 2**32."""
    return (np.uint64(at) * THIRD) >> THIRD_SHIFT
