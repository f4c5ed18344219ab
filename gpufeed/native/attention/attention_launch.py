"""Launches of the kernels, by a configuration. Triton is imported here, and so only where it is used."""

import math

import torch

from gpufeed.core.errors import GpufeedError
from gpufeed.native.attention import kernels
from gpufeed.native.attention.tiles import Configuration, Tile, choose

LOG2_E = math.log2(math.e)


def forward(qkv: torch.Tensor, chosen: Configuration | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """qkv (N, T, 3, H, d) -> out (N, T, H, d) and sums float32 (N, H, T), log2 of each row's."""
    qkv = in_rows(qkv)
    n, tokens, _, heads, width = qkv.shape
    out = qkv.new_empty((n, tokens, heads, width))
    sums = qkv.new_empty((n, heads, tokens), dtype=torch.float32)
    tile = (chosen or choose(tokens, width)).forward
    if not tile.holds(tokens) and tile.each > 1:
        raise unfit(tokens, tile)
    kernel = kernels.forward_rows if tile.holds(tokens) else kernels.forward_tiles
    if n:
        with torch.cuda.device_of(qkv):
            kernel[(n * heads, blocks(tokens, tile.rows * tile.each))](
                qkv, out, sums, *strides(qkv), heads, LOG2_E / math.sqrt(width),
                TOKENS=tokens, WIDTH=width, ROWS=tile.rows, COLUMNS=tile.columns, EACH=tile.each,
                STAGES=tile.stages, num_warps=tile.warps,
            )  # fmt: skip
    return out, sums


def backward(
    grad: torch.Tensor,
    qkv: torch.Tensor,
    out: torch.Tensor,
    sums: torch.Tensor,
    chosen: Configuration | None = None,
) -> torch.Tensor:
    """The gradient of qkv, contiguous (N, T, 3, H, d). grad (N, T, H, d); out, sums: of `forward`."""
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
            kernels.backward_keys[(n * heads, blocks(tokens, tile.columns))](
                *given, TOKENS=tokens, WIDTH=width, ROWS=tile.rows, COLUMNS=tile.columns,
                QUERIES=chosen.queries is None, TURNED=tile.turned, STAGES=tile.stages, num_warps=tile.warps,
            )  # fmt: skip
            if (tile := chosen.queries) is not None:
                kernels.backward_queries[(n * heads, blocks(tokens, tile.rows))](
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
    """The tensor where the values of a head lie side by side, else a copy."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def strides(qkv: torch.Tensor) -> tuple[int, int, int, int]:
    """Of an image, a token, q to k to v, and a head."""
    return qkv.stride()[:4]


def blocks(count: int, size: int) -> int:
    return -(-count // size)
