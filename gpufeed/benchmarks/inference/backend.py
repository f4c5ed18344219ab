"""What a backend is: a function that prepares a saved model to run on batches of one size.

`prepare(setting) -> Ready`. All that is done once belongs into it: building, casting, quantising, compiling,
capturing. It raises Skip for what this node or this model lacks. Preparing and running are called under
torch.no_grad, not inference_mode, whose tensors torch.compile does not take as weights.

Another precision means weights and values in that type, without autocast and its casts.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from gpufeed.benchmarks.inference.exported_files import Files
from gpufeed.benchmarks.saved_models.model_file import SavedModel
from gpufeed.system.devices import resolve_precision

# float32 (N, 3, H, W), normalised, contiguous, on the device, to float32 logits (N, classes) on the device.
# N is that of the example; the logits may be overwritten by the next call.
Run = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Setting:
    """images: an example of the batches that will come, as `Run` takes them.

    precision: of gpufeed.core.registry.BACKENDS. fallback: the precision of what a quantised model has not
    quantised, fp32 or bf16. channels_last: the memory layout of weights that the model was trained in.
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
        """A model of one's own, float32 on the device."""
        model = self.saved.build(self.device)
        return model.to(memory_format=torch.channels_last) if self.channels_last else model


@dataclass(frozen=True)
class Ready:
    """bytes: of the weights, or of the file, that it runs. note: what a reader of its numbers must know.

    layers: how many layers are quantised, of how many; None for those that quantise nothing.
    """

    run: Run
    bytes: int
    note: str | None = None
    layers: dict[str, int] | None = None


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
