"""The ops as functions: the extension's kernels if it has some for the device, else the reference.

They work under autograd, autocast and torch.compile(fullgraph=True). A second derivative is refused.
"""

import torch
import torch.nn.functional as F

from gpufeed.core.errors import GpufeedError
from gpufeed.native import torch_reference
from gpufeed.native.gradients import FIRST_ONLY
from gpufeed.native.loading import uses_extension

FORMS = ("none", "tanh")


def bias_gelu(x: torch.Tensor, bias: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """Return gelu(x + bias), in one pass over memory, forward and backward (with the bias's gradient).

    x (..., C): float32, float16 or bfloat16, on the CPU also float64. bias (C,): of x's dtype or float32, so
    a float32 parameter needs no cast under autocast. The result has shape and dtype of x; the sum is kept in
    float32 (float64 for float64). approximate: "none" (erf) or "tanh". gelu(-inf) is 0, where torch gives
    NaN. Raises GpufeedError for another form, RuntimeError, ValueError or TypeError for other tensors.
    """
    check_form(approximate)
    if uses_extension(x.device.type):
        return torch.ops.gpufeed.bias_gelu(x, bias, approximate)
    return torch_reference.bias_gelu(x, bias, approximate)


def linear_bias_gelu(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, approximate: str = "tanh"
) -> torch.Tensor:
    """Return gelu(x @ weight.T + bias), by an epilogue of the matrix product, in the tanh form only.

    x (..., K), weight (N, K), bias (N,) of one dtype, or cast to autocast's -> (..., N). Errors as bias_gelu.
    """
    check_tanh(approximate, "linear_bias_gelu")
    if uses_extension(x.device.type):
        return torch.ops.gpufeed.linear_bias_gelu(*as_autocast(x, weight, bias))[0]
    return torch_reference.linear_bias_gelu(x, weight, bias, approximate)


def gelu_mlp(
    x: torch.Tensor,
    weight1: torch.Tensor,
    bias1: torch.Tensor,
    weight2: torch.Tensor,
    bias2: torch.Tensor,
    approximate: str = "tanh",
) -> torch.Tensor:
    """Return linear, bias, gelu, linear, with the gelu in the first product; tanh form only.

    x (..., K), weight1 (N, K), bias1 (N,), weight2 (M, N), bias2 (M,) of one dtype, or cast to autocast's ->
    (..., M). Errors as bias_gelu.
    """
    check_tanh(approximate, "gelu_mlp")
    if uses_extension(x.device.type):
        return GeluMlp.apply(*as_autocast(x, weight1, bias1, weight2, bias2))
    return torch_reference.gelu_mlp(x, weight1, bias1, weight2, bias2, approximate)


def check_form(approximate: str) -> None:
    """Raise GpufeedError unless `approximate` is a form of GELU."""
    if approximate not in FORMS:
        raise GpufeedError(
            f"approximate {approximate!r}", "'none' (the erf form) or 'tanh'", "pass one of the two"
        )


def check_tanh(approximate: str, op: str) -> None:
    """Raise GpufeedError unless `approximate` is the form of cuBLASLt's epilogues."""
    check_form(approximate)
    if approximate != "tanh":
        raise GpufeedError(
            f"approximate {approximate!r} for {op}",
            "'tanh', the only form that the epilogues of cuBLASLt have",
            "pass approximate='tanh', or use bias_gelu, which has both forms",
        )


def as_autocast(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the tensors in autocast's dtype if it is on for their device, as F.linear casts them."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(tensor if tensor.dtype == torch.float64 else tensor.to(dtype) for tensor in tensors)


class GeluMlp(torch.autograd.Function):
    """gelu_mlp of tensors of one dtype. Keeps x, the hidden rows before and after the gelu, the weights."""

    @staticmethod
    def forward(ctx, x, weight1, bias1, weight2, bias2):
        hidden, aux = torch.ops.gpufeed.linear_bias_gelu(x, weight1, bias1)
        ctx.save_for_backward(x, weight1, weight2, hidden, aux)
        return F.linear(hidden, weight2, bias2)

    @staticmethod
    def backward(ctx, grad):
        # not once_differentiable, which ignores x and the weights: if `grad` needs no derivative, it would
        # silently leave out their part of a second derivative
        if torch.is_grad_enabled():
            raise GpufeedError(*FIRST_ONLY)
        x, weight1, weight2, hidden, aux = ctx.saved_tensors
        dz, dbias1 = torch.ops.gpufeed.bias_gelu_backward(grad @ weight2, aux, None, "tanh")
        upper, lower = rows(grad), rows(dz)
        dx = (lower @ weight1).view_as(x) if ctx.needs_input_grad[0] else None
        return dx, lower.mT @ rows(x), dbias1, upper.mT @ rows(hidden), torch.ops.gpufeed.column_sum(upper)


def rows(tensor: torch.Tensor) -> torch.Tensor:
    """Reshape (..., C) to (rows, C)."""
    return tensor.reshape(-1, tensor.shape[-1])
