"""The contract of a backend: a function that prepares a saved model to run on batches of one size.

`prepare(setting) -> Ready`. It does all one-time work: building, casting, quantising, compiling, capturing.
It raises Skip for what this node or this model lacks. Preparing and running are called under torch.no_grad,
not inference_mode, whose tensors torch.compile does not accept as weights.

Another precision means weights and values of that type, without autocast.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from gpufeed.benchmarks.inference.exported_files import Files
from gpufeed.benchmarks.saved_models.model_file import SavedModel
from gpufeed.system.devices import resolve_precision

# float32 (N, 3, H, W), normalised, contiguous, on the device -> float32 logits (N, classes) on the device.
# N is that of the example; the next call may overwrite the logits.
Run = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Setting:
    """What a backend gets. images: an example of the batches to come, in the form of `Run`.

    precision: of gpufeed.core.registry.BACKENDS. fallback: the precision of the layers that a quantised model
    does not quantise, fp32 or bf16. channels_last: the memory layout of the weights in training.
    """

    saved: SavedModel
    files: Files
    images: torch.Tensor
    precision: str
    fallback: str = "fp32"
    channels_last: bool = False

    @property
    def device(self) -> torch.device:
        return self.images.device

    def model(self) -> nn.Module:
        """Return a new float32 model on the device."""
        model = self.saved.build(self.device)
        return model.to(memory_format=torch.channels_last) if self.channels_last else model


@dataclass(frozen=True)
class Ready:
    """A prepared backend. bytes: of its weights or of its file. note: what readers of its numbers must know.

    layers: how many layers are quantised, and of how many; None without quantisation.
    """

    run: Run
    bytes: int
    note: str | None = None
    layers: dict[str, int] | None = None


DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def forward_of(setting: Setting, precision: str | None = None) -> tuple[nn.Module, Callable]:
    """Return the setting's model in its precision (or this one), and a `Run` that calls it.

    Raises Skip if the device lacks the precision.
    """
    precision = resolve_precision(precision or setting.precision, setting.device)
    model, dtype = in_type(setting.model(), DTYPES[precision], setting.images), DTYPES[precision]

    def forward(images: torch.Tensor) -> torch.Tensor:
        return model(images.to(dtype)).float()

    # torch.compile caches a few versions per code object: a copy gets its own cache
    forward.__code__ = forward.__code__.replace()
    return model, forward


def in_type(model: nn.Module, dtype: torch.dtype, images: torch.Tensor) -> nn.Module:
    """Return the model with all weights of this type.

    A model may compute a part in float32 on purpose, and pass it to a layer whose weights have the new type.
    Only such layers get a hook that casts their input, since a hook costs host time. images: an example.
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
    """Return the bytes of all parameters and buffers; quantised tensors count by their parts."""
    return sum(tensor_bytes(tensor) for tensor in (*model.parameters(), *model.buffers()))


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of one tensor, or those of the tensors that it consists of."""
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return sum(tensor_bytes(getattr(tensor, name)) for name in names)
    return tensor.numel() * tensor.element_size()
