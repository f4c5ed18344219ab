"""Triton kernels of attention for short sequences, with q, k and v packed in one product, without copies.

A program computes one head of one image. Scores never leave the chip. q, k and v are read by strides from the
product's output, (N, T, 3, H, d), and their gradients are written in the same form. Exponentials are powers
of two, with the scale and log2(e) in one factor. There are no atomic additions: one program writes each value
once, in a fixed order.

Sources: Dao 2023, arXiv:2307.08691 (the backward without stored scores); Milakov and Gimelshein 2018,
arXiv:1805.02867 (the softmax over tiles).

Rows are queries, columns are keys. Sizes of a tile are powers of two; a T that does not fill a tile is
masked. The launches choose a configuration by length and width.
"""

import math

import torch
import triton
import triton.language as tl

from gpufeed.core.errors import GpufeedError
from gpufeed.native.attention.tiles import Configuration, Tile, choose


@triton.jit
def tile(base, places, stride, LIMIT: tl.constexpr, WIDTH: tl.constexpr, FULL: tl.constexpr):
    """Load rows `places` of a matrix (LIMIT, WIDTH) as (len(places), WIDTH), zero beyond the last."""
    at = base + places[:, None] * stride + tl.arange(0, WIDTH)[None, :]
    if FULL:
        return tl.load(at)
    return tl.load(at, mask=places[:, None] < LIMIT, other=0.0)


@triton.jit
def put(base, places, stride, values, LIMIT: tl.constexpr, WIDTH: tl.constexpr, FULL: tl.constexpr):
    """Store values where `tile` would load them."""
    at = base + places[:, None] * stride + tl.arange(0, WIDTH)[None, :]
    if FULL:
        tl.store(at, values.to(base.dtype.element_ty))
    else:
        tl.store(at, values.to(base.dtype.element_ty), mask=places[:, None] < LIMIT)


@triton.jit
def forward_rows(
    qkv, out, lse, image_stride, token_stride, part_stride, head_stride, heads, factor,
    TOKENS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    EACH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute whole rows of scores at once: TOKENS <= COLUMNS. A program does EACH tiles of queries.

    out (N, T, H, d) and lse (N, H, T) are contiguous. lse: log2 of the sum of the powers of a row. factor:
    scale * log2(e).
    """
    FULL_ROWS: tl.constexpr = TOKENS % (ROWS * EACH) == 0
    FULL: tl.constexpr = TOKENS == COLUMNS
    head = tl.program_id(0)
    image = (head // heads).to(tl.int64)
    base = qkv + image * image_stride + (head % heads) * head_stride
    out += image * (TOKENS * WIDTH) * heads + (head % heads) * WIDTH
    lse += head.to(tl.int64) * TOKENS
    columns = tl.arange(0, COLUMNS)
    k = tile(base + part_stride, columns, token_stride, TOKENS, WIDTH, FULL)
    v = tile(base + 2 * part_stride, columns, token_stride, TOKENS, WIDTH, FULL)
    for step in tl.range(0, EACH, num_stages=STAGES):
        rows = (tl.program_id(1) * EACH + step) * ROWS + tl.arange(0, ROWS)
        q = tile(base, rows, token_stride, TOKENS, WIDTH, FULL_ROWS)
        s = tl.dot(q, tl.trans(k))
        if not FULL:
            s = tl.where((columns < TOKENS)[None, :], s, float("-inf"))
        top = tl.max(s, 1) * factor
        p = tl.exp2(s * factor - top[:, None])
        total = tl.sum(p, 1)
        o = tl.dot(p.to(v.dtype), v) * (1 / total)[:, None]
        put(out, rows, heads * WIDTH, o, TOKENS, WIDTH, FULL_ROWS)
        tl.store(lse + rows, top + tl.log2(total), mask=rows < TOKENS)


@triton.jit
def forward_tiles(
    qkv, out, lse, image_stride, token_stride, part_stride, head_stride, heads, factor,
    TOKENS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    EACH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute as forward_rows: one tile of queries per program (EACH 1), and a running softmax over keys."""
    FULL_ROWS: tl.constexpr = TOKENS % ROWS == 0
    FULL: tl.constexpr = TOKENS % COLUMNS == 0
    head = tl.program_id(0)
    image = (head // heads).to(tl.int64)
    base = qkv + image * image_stride + (head % heads) * head_stride
    out += image * (TOKENS * WIDTH) * heads + (head % heads) * WIDTH
    lse += head.to(tl.int64) * TOKENS
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    q = tile(base, rows, token_stride, TOKENS, WIDTH, FULL_ROWS)
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    o = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in tl.range(0, TOKENS, COLUMNS, num_stages=STAGES):
        columns = first + tl.arange(0, COLUMNS)
        k = tile(base + part_stride, columns, token_stride, TOKENS, WIDTH, FULL)
        v = tile(base + 2 * part_stride, columns, token_stride, TOKENS, WIDTH, FULL)
        s = tl.dot(q, tl.trans(k))
        if not FULL:
            s = tl.where((columns < TOKENS)[None, :], s, float("-inf"))
        higher = tl.maximum(top, tl.max(s, 1) * factor)
        p = tl.exp2(s * factor - higher[:, None])
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(p, 1)
        o = tl.dot(p.to(v.dtype), v, o * shrink[:, None])
        top = higher
    put(out, rows, heads * WIDTH, o * (1 / total)[:, None], TOKENS, WIDTH, FULL_ROWS)
    tl.store(lse + rows, top + tl.log2(total), mask=rows < TOKENS)


@triton.jit
def backward_keys(
    qkv, out, lse, grad, dqkv, image_stride, token_stride, part_stride, head_stride,
    grad_image_stride, grad_token_stride, grad_head_stride, heads, scale, factor,
    TOKENS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    QUERIES: tl.constexpr, TURNED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute dk and dv of COLUMNS keys, kept in registers over all queries; with QUERIES also dq.

    QUERIES needs TOKENS <= COLUMNS, with five products per tile. Otherwise there are four here and three in
    backward_queries. TURNED: compute dq as the transposed product, whose M is the head's width instead of
    ROWS (wgmma needs 64). grad (N, T, H, d) by strides; dqkv (N, T, 3, H, d) contiguous.
    """
    FULL_ROWS: tl.constexpr = TOKENS % ROWS == 0
    FULL: tl.constexpr = TOKENS % COLUMNS == 0
    head = tl.program_id(0)
    image = (head // heads).to(tl.int64)
    own = head % heads
    base = qkv + image * image_stride + own * head_stride
    grad += image * grad_image_stride + own * grad_head_stride
    out += image * (TOKENS * WIDTH) * heads + own * WIDTH
    lse += head.to(tl.int64) * TOKENS
    dqkv += image * (3 * TOKENS * WIDTH) * heads + own * WIDTH
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    k = tile(base + part_stride, columns, token_stride, TOKENS, WIDTH, FULL)
    v = tile(base + 2 * part_stride, columns, token_stride, TOKENS, WIDTH, FULL)
    dk = tl.zeros((COLUMNS, WIDTH), tl.float32)
    dv = tl.zeros((COLUMNS, WIDTH), tl.float32)
    for first in tl.range(0, TOKENS, ROWS, num_stages=STAGES):
        rows = first + tl.arange(0, ROWS)
        q = tile(base, rows, token_stride, TOKENS, WIDTH, FULL_ROWS)
        g = tile(grad, rows, grad_token_stride, TOKENS, WIDTH, FULL_ROWS)
        o = tile(out, rows, heads * WIDTH, TOKENS, WIDTH, FULL_ROWS)
        delta = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
        # beyond the last query infinity makes every p zero
        sums = tl.load(lse + rows, mask=rows < TOKENS, other=float("inf"))
        p = tl.exp2(tl.dot(k, tl.trans(q)) * factor - sums[None, :])  # (COLUMNS, ROWS), as all that follows
        if not FULL:
            p = tl.where((columns < TOKENS)[:, None], p, 0.0)
        dv = tl.dot(p.to(g.dtype), g, dv)
        ds = (p * (tl.dot(v, tl.trans(g)) - delta[None, :])).to(q.dtype)
        dk = tl.dot(ds, q, dk)
        if QUERIES:
            dq = tl.trans(tl.dot(tl.trans(k), ds)) if TURNED else tl.dot(tl.trans(ds), k)
            put(dqkv, rows, 3 * heads * WIDTH, dq * scale, TOKENS, WIDTH, FULL_ROWS)
    put(dqkv + heads * WIDTH, columns, 3 * heads * WIDTH, dk * scale, TOKENS, WIDTH, FULL)
    put(dqkv + 2 * heads * WIDTH, columns, 3 * heads * WIDTH, dv, TOKENS, WIDTH, FULL)


@triton.jit
def backward_queries(
    qkv, out, lse, grad, dqkv, image_stride, token_stride, part_stride, head_stride,
    grad_image_stride, grad_token_stride, grad_head_stride, heads, scale, factor,
    TOKENS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Compute dq of ROWS queries over all keys, COLUMNS at a time. Arguments as in backward_keys."""
    FULL_ROWS: tl.constexpr = TOKENS % ROWS == 0
    FULL: tl.constexpr = TOKENS % COLUMNS == 0
    head = tl.program_id(0)
    image = (head // heads).to(tl.int64)
    own = head % heads
    base = qkv + image * image_stride + own * head_stride
    grad += image * grad_image_stride + own * grad_head_stride
    out += image * (TOKENS * WIDTH) * heads + own * WIDTH
    lse += head.to(tl.int64) * TOKENS
    dqkv += image * (3 * TOKENS * WIDTH) * heads + own * WIDTH
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    q = tile(base, rows, token_stride, TOKENS, WIDTH, FULL_ROWS)
    g = tile(grad, rows, grad_token_stride, TOKENS, WIDTH, FULL_ROWS)
    o = tile(out, rows, heads * WIDTH, TOKENS, WIDTH, FULL_ROWS)
    delta = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    sums = tl.load(lse + rows, mask=rows < TOKENS, other=float("inf"))
    dq = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in tl.range(0, TOKENS, COLUMNS, num_stages=STAGES):
        columns = first + tl.arange(0, COLUMNS)
        k = tile(base + part_stride, columns, token_stride, TOKENS, WIDTH, FULL)
        v = tile(base + 2 * part_stride, columns, token_stride, TOKENS, WIDTH, FULL)
        p = tl.exp2(tl.dot(q, tl.trans(k)) * factor - sums[:, None])
        if not FULL:
            p = tl.where((columns < TOKENS)[None, :], p, 0.0)
        ds = (p * (tl.dot(g, tl.trans(v)) - delta[:, None])).to(k.dtype)
        dq = tl.dot(ds, k, dq)
    put(dqkv, rows, 3 * heads * WIDTH, dq * scale, TOKENS, WIDTH, FULL_ROWS)


LOG2_E = math.log2(math.e)


def launch_forward(
    qkv: torch.Tensor, chosen: Configuration | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out (N, T, H, d), and sums float32 (N, H, T), for qkv (N, T, 3, H, d)."""
    qkv = in_rows(qkv)
    n, tokens, _, heads, width = qkv.shape
    out = qkv.new_empty((n, tokens, heads, width))
    sums = qkv.new_empty((n, heads, tokens), dtype=torch.float32)
    tile = (chosen or choose(tokens, width)).forward
    if not tile.holds(tokens) and tile.each > 1:
        raise unfit(tokens, tile)
    kernel = forward_rows if tile.holds(tokens) else forward_tiles
    if n:
        with torch.cuda.device_of(qkv):
            kernel[(n * heads, blocks(tokens, tile.rows * tile.each))](
                qkv, out, sums, *strides(qkv), heads, LOG2_E / math.sqrt(width),
                TOKENS=tokens, WIDTH=width, ROWS=tile.rows, COLUMNS=tile.columns, EACH=tile.each,
                STAGES=tile.stages, num_warps=tile.warps,
            )  # fmt: skip
    return out, sums


def launch_backward(
    grad: torch.Tensor,
    qkv: torch.Tensor,
    out: torch.Tensor,
    sums: torch.Tensor,
    chosen: Configuration | None = None,
) -> torch.Tensor:
    """Return the gradient of qkv, contiguous (N, T, 3, H, d). grad (N, T, H, d); out, sums: of `forward`."""
    qkv, grad = in_rows(qkv), in_rows(grad)
    n, tokens, _, heads, width = qkv.shape
    dqkv = torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device)
    chosen = chosen or choose(tokens, width)
    if not chosen.keys.holds(tokens) and chosen.queries is None:
        raise unfit(tokens, chosen.keys)
    scale = 1 / math.sqrt(width)
    given = (qkv, out, sums, grad, dqkv, *strides(qkv), *grad.stride()[:3], heads, scale, scale * LOG2_E)
    if n:
        with torch.cuda.device_of(qkv):
            tile = chosen.keys
            backward_keys[(n * heads, blocks(tokens, tile.columns))](
                *given, TOKENS=tokens, WIDTH=width, ROWS=tile.rows, COLUMNS=tile.columns,
                QUERIES=chosen.queries is None, TURNED=tile.turned, STAGES=tile.stages, num_warps=tile.warps,
            )  # fmt: skip
            if (tile := chosen.queries) is not None:
                backward_queries[(n * heads, blocks(tokens, tile.rows))](
                    *given, TOKENS=tokens, WIDTH=width, ROWS=tile.rows, COLUMNS=tile.columns,
                    STAGES=tile.stages, num_warps=tile.warps,
                )  # fmt: skip
    return dqkv


def unfit(tokens: int, tile: Tile) -> GpufeedError:
    return GpufeedError(
        f"{tokens} tokens for a kernel that holds {tile.columns} keys",
        "no more than it holds",
        "use `choose`",
    )


def in_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor if the values of a head are adjacent, else a copy."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def strides(qkv: torch.Tensor) -> tuple[int, int, int, int]:
    """Return the strides of an image, a token, q to k to v, and a head."""
    return qkv.stride()[:4]


def blocks(count: int, size: int) -> int:
    return -(-count // size)
