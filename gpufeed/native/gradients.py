"""What torch needs besides the kernels of the ops: output shapes, and derivatives."""

import torch

from gpufeed.core.errors import GpufeedError

FIRST_ONLY = (
    "a second derivative of bias_gelu",
    "first derivatives only: the backward kernels have none of their own",
    "use torch.nn.functional.gelu(x + bias), or gpufeed.native.torch_reference, where you need it",
)


def register() -> None:
    """Register all of it, once per process, after the library is loaded."""
    torch.library.register_fake("gpufeed::bias_gelu", fake_bias_gelu)
    torch.library.register_fake("gpufeed::bias_gelu_backward", fake_bias_gelu_backward)
    torch.library.register_fake("gpufeed::linear_bias_gelu", fake_linear_bias_gelu)
    torch.library.register_fake("gpufeed::column_sum", fake_column_sum)
    torch.library.register_fake("gpufeed::decode_jpegs", fake_decode_jpegs)
    torch.library.register_fake("gpufeed::decode_jpeg_files", fake_decode_jpeg_files)
    torch.library.register_autograd("gpufeed::bias_gelu", bias_gelu, setup_context=keep_x_and_bias)
    torch.library.register_autograd("gpufeed::linear_bias_gelu", linear_bias_gelu, setup_context=keep_linear)
    torch.library.register_autograd("gpufeed::column_sum", column_sum, setup_context=keep_shape)
    torch.library.register_autograd("gpufeed::bias_gelu_backward", refuse)


def fake_bias_gelu(x, bias, approximate):
    return x.new_empty(x.shape)  # contiguous, whatever x is


def fake_bias_gelu_backward(grad, x, bias, approximate):
    return x.new_empty(x.shape), (x if bias is None else bias).new_empty(x.shape[-1:])


def fake_linear_bias_gelu(x, weight, bias):
    shape = (*x.shape[:-1], weight.shape[0])
    return x.new_empty(shape), x.new_empty(shape)


def fake_column_sum(x):
    return x.new_empty(x.shape[-1:])


def fake_decode_jpegs(
    data, starts, ends, tables, height, width, components, horizontal, vertical, fancy, longest=None
):
    count = starts.shape[0]
    return data.new_empty((count, height, width, 3)), data.new_empty((count,))


def fake_decode_jpeg_files(data, files, offsets, fancy, windows=None):
    count, size = offsets.shape[0] - 1, torch.library.get_ctx().new_dynamic_size()
    return data.new_empty((size,)), data.new_empty((count,)), offsets.new_empty((7, count))


def keep_x_and_bias(ctx, inputs, output):
    x, bias, ctx.approximate = inputs
    ctx.save_for_backward(x, bias)


def bias_gelu(ctx, grad):
    """Return the gradients of x and bias, in their dtypes."""
    x, bias = ctx.saved_tensors
    dx, dbias = torch.ops.gpufeed.bias_gelu_backward(grad, x, bias, ctx.approximate)
    return dx, dbias, None


def keep_linear(ctx, inputs, output):
    x, weight, _ = inputs
    ctx.set_materialize_grads(False)  # aux rarely has a gradient: do not write zeros for it
    ctx.save_for_backward(x, weight, output[1])


def linear_bias_gelu(ctx, grad, grad_aux):
    """Return the gradients of x, weight and bias from those of both outputs, either of which may be None."""
    x, weight, aux = ctx.saved_tensors
    if grad is None and grad_aux is None:
        return None, None, None
    if grad is None:
        dz, dbias = grad_aux, torch.ops.gpufeed.column_sum(grad_aux)
    else:
        dz, dbias = torch.ops.gpufeed.bias_gelu_backward(grad, aux, None, "tanh")
        if grad_aux is not None:
            dz = dz + grad_aux
            dbias = torch.ops.gpufeed.column_sum(dz)
    rows = dz.reshape(-1, dz.shape[-1])
    dx = (rows @ weight).view_as(x) if ctx.needs_input_grad[0] else None
    return dx, rows.mT @ x.reshape(-1, x.shape[-1]), dbias


def keep_shape(ctx, inputs, output):
    ctx.shape = inputs[0].shape


def column_sum(ctx, grad):
    """Return the gradient of x, which is the same for each row."""
    return grad.expand(ctx.shape)


def refuse(ctx, *grads):
    raise GpufeedError(*FIRST_ONLY)
