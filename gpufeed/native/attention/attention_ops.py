"""Attention over packed q, k and v as torch ops: `gpufeed::packed_attention` and its backward.

The ops are opaque to torch.compile, which keeps the strides of eager tensors. Nothing waits for the device,
so a CUDA graph may capture them once a first run has compiled the kernels.
"""

import torch

from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.native import jit_toolchain
from gpufeed.native.attention.tiles import MOST_TOKENS, WIDTHS
from gpufeed.native.jit_toolchain import lacking_for_gpu

DTYPES = (torch.float16, torch.bfloat16)
AMPERE = (8, 0)  # first compute capability with bfloat16 products


def packed_attention(qkv: torch.Tensor) -> torch.Tensor:
    """Return softmax(q k^T / sqrt(d)) v of each head: (N, T, 3, H, d) to (N, T, H, d), contiguous.

    qkv: float16 or bfloat16, or cast to autocast's type, on CUDA. d is one of WIDTHS, T is 1 to MOST_TOKENS.
    It is read by its strides if that of d is 1, else copied first. Products and the softmax are computed in
    float32. The gradient is one contiguous (N, T, 3, H, d), the same in every run, without a second
    derivative. Raises GpufeedError for any other tensor. float32 is refused, since no tensor-core product
    keeps its precision.
    """
    device = qkv.device.type
    if torch.is_autocast_enabled(device):
        qkv = qkv.to(torch.get_autocast_dtype(device))
    check(qkv)
    return torch.ops.gpufeed.packed_attention(qkv)[0]


def check(qkv: torch.Tensor) -> None:
    """Raise GpufeedError unless the kernels accept the tensor."""
    if qkv.dtype not in DTYPES:
        raise GpufeedError(
            f"packed attention of {str(qkv.dtype).removeprefix('torch.')}",
            "float16 or bfloat16",
            "train with precision fp16 or bf16, or take another model.sdpa",
        )
    if (
        qkv.dim() != 5
        or qkv.shape[2] != 3
        or qkv.shape[4] not in WIDTHS
        or not 0 < qkv.shape[1] <= MOST_TOKENS
    ):
        raise GpufeedError(
            f"packed attention of a tensor {tuple(qkv.shape)}",
            f"(N, T, 3, heads, d) with T from 1 to {MOST_TOKENS} and d one of {', '.join(map(str, WIDTHS))}",
            "change model.heads or model.patch, or take another model.sdpa",
        )
    if qkv.device.type != "cuda" and not jit_toolchain.interpreted():
        raise GpufeedError(
            f"packed attention on {qkv.device.type}", "a CUDA GPU", "take model.sdpa math or auto there"
        )


def require(device: torch.device, dtype: torch.dtype, tokens: int, heads: int, width: int) -> None:
    """Raise Skip if the node cannot run the op; this runs it forward and backward on a zero image."""
    name = str(dtype).removeprefix("torch.")
    what = f"SDPA backend packed does not run on this node's {device.type} with {name}"
    if device.type != "cuda" and not jit_toolchain.interpreted():
        raise Skip(f"{what}: it is compiled by Triton for CUDA GPUs.")
    if dtype not in DTYPES:
        raise Skip(f"{what}: it has kernels for float16 and bfloat16.")
    if device.type == "cuda":
        if (lack := lacking_for_gpu(device)) is not None:
            raise Skip(f"{what}: it is compiled by Triton on its node, which has {lack}.")
        capability = torch.cuda.get_device_capability(device)
        if capability < AMPERE:
            raise Skip(f"{what}: it needs compute capability 8.0, found {capability[0]}.{capability[1]}.")
    from triton.runtime.errors import OutOfResources

    zeros = torch.zeros((1, tokens, 3, heads, width), device=device, dtype=dtype, requires_grad=True)
    try:
        packed_attention(zeros).sum().backward()
    except OutOfResources as error:  # tiles are chosen for the shared memory of an H100 or H200
        raise Skip(f"{what} and {heads} heads of {width} values: {error}") from error


@torch.library.custom_op("gpufeed::packed_attention", mutates_args=())
def forward(qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out (N, T, H, d), and log2 of each row's sum of powers, float32 (N, H, T)."""
    from gpufeed.native.attention.kernels import launch_forward

    return launch_forward(qkv)


@torch.library.custom_op("gpufeed::packed_attention_backward", mutates_args=())
def backward(grad: torch.Tensor, qkv: torch.Tensor, out: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """Return the gradient of qkv, contiguous."""
    from gpufeed.native.attention.kernels import launch_backward

    return launch_backward(grad, qkv, out, sums)


@forward.register_fake
def _(qkv):
    n, tokens, _, heads, width = qkv.shape
    return (
        qkv.new_empty((n, tokens, heads, width)),
        qkv.new_empty((n, heads, tokens), dtype=torch.float32),
    )


@backward.register_fake
def _(grad, qkv, out, sums):
    return qkv.new_empty(qkv.shape)  # contiguous, whatever qkv is


def keep(ctx, inputs, output):
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])  # the sums are for the backward only
    ctx.save_for_backward(*inputs, *output)


def gradient(ctx, grad, _):
    """Return the gradient of qkv from that of out."""
    return None if grad is None else torch.ops.gpufeed.packed_attention_backward(grad, *ctx.saved_tensors)


def refuse(ctx, *grads):
    raise GpufeedError(
        "a second derivative of packed attention",
        "first derivatives only: the backward kernels have none of their own",
        "take model.sdpa math where you need it",
    )


forward.register_autograd(gradient, setup_context=keep)
backward.register_autograd(refuse)
