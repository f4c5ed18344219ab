"""A model in another precision: its weights and values in that type, without autocast and its casts."""

from collections.abc import Callable

import torch
from torch import nn

from gpufeed.benchmarks.inference.backend import Setting
from gpufeed.system.devices import resolve_precision

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def forward_of(setting: Setting, precision: str | None = None) -> tuple[nn.Module, Callable]:
    """The setting's model in its precision (or this one), and a function as `Run` that calls it.

    Raises Skip where the device lacks the precision.
    """
    precision = resolve_precision(precision or setting.precision, setting.device)
    model, dtype = in_type(setting.model(), DTYPES[precision], setting.images), DTYPES[precision]

    def forward(images: torch.Tensor) -> torch.Tensor:
        return model(images.to(dtype)).float()

    # torch.compile keeps what it has compiled by code object, a few versions of each: this gets its own
    forward.__code__ = forward.__code__.replace()
    return model, forward


def in_type(model: nn.Module, dtype: torch.dtype, images: torch.Tensor) -> nn.Module:
    """The model with all its weights in this type.

    A model that computes a part in float32 on purpose hands it to a layer whose weights are of the new type:
    that layer gets its input cast, and no other one does, since a hook costs the host time. images: an
    example.
    """
    if dtype == torch.float32:
        return model
    model.to(dtype)
    mixed: dict[nn.Module, None] = {}

    def cast(layer: nn.Module, inputs: tuple) -> tuple | None:
        first = inputs[0] if inputs else None
        if torch.is_tensor(first) and first.is_floating_point() and first.dtype != layer.weight.dtype:
            mixed[layer] = None
            return first.to(layer.weight.dtype), *inputs[1:]
        return None

    layers = [layer for layer in model.modules() if isinstance(getattr(layer, "weight", None), torch.Tensor)]
    hooks = [layer.register_forward_pre_hook(cast) for layer in layers]
    with torch.no_grad():
        model(images[:1].to(dtype))
    for hook in hooks:
        hook.remove()
    for layer in mixed:
        layer.register_forward_pre_hook(lambda layer, inputs: (inputs[0].to(dtype), *inputs[1:]))
    return model


def weight_bytes(model: nn.Module) -> int:
    """Bytes of all parameters and buffers, those of a quantised tensor's parts for such a one."""
    return sum(tensor_bytes(tensor) for tensor in (*model.parameters(), *model.buffers()))


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Bytes of one tensor; of a tensor made of others, theirs."""
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return sum(tensor_bytes(getattr(tensor, name)) for name in names)
    return tensor.numel() * tensor.element_size()
