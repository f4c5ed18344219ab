"""The ops in plain torch, for every device and dtype: the reference, and the fallback without the extension.

It rounds where torch does, and gives NaN for gelu(-inf) like torch; the extension gives the limit, 0.
"""

import torch
import torch.nn.functional as F


def bias_gelu(x: torch.Tensor, bias: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """Return gelu(x + bias), the sum in float32 (float64 for float64): x (..., C), bias (C,) -> like x."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    return F.gelu(x.to(wide) + bias.to(wide), approximate=approximate).to(x.dtype)


def linear_bias_gelu(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, approximate: str = "tanh"
) -> torch.Tensor:
    """Return gelu(x @ weight.T + bias): x (..., K), weight (N, K), bias (N,) -> (..., N)."""
    return F.gelu(F.linear(x, weight, bias), approximate=approximate)


def gelu_mlp(
    x: torch.Tensor,
    weight1: torch.Tensor,
    bias1: torch.Tensor,
    weight2: torch.Tensor,
    bias2: torch.Tensor,
    approximate: str = "tanh",
) -> torch.Tensor:
    """Return linear, bias, gelu, linear: x (..., K), weight1 (N, K), weight2 (M, N) -> (..., M)."""
    return F.linear(linear_bias_gelu(x, weight1, bias1, approximate), weight2, bias2)
