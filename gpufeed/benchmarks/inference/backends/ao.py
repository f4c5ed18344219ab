"""torchao: linear layers with int8 or fp8 weights, whose inputs are quantised row by row at run time.

Models are compiled, since otherwise torchao's quantisation is a chain of small kernels. On a GPU they are
also captured as a CUDA graph. Other layers have the fallback's type. Weights have one scale per output
channel.
"""

from typing import Any

import torch
from torch import nn

from gpufeed.benchmarks.inference.backend import Ready, Setting, forward_of, weight_bytes
from gpufeed.benchmarks.inference.backends.torch_backends import CapturedRun, compiled
from gpufeed.benchmarks.inference.export import packages
from gpufeed.core.errors import Skip
from gpufeed.native.jit_toolchain import require_compiler

ADA = (8, 9)  # first compute capability with fp8 units (CUDA C++ Programming Guide)
FEWEST_ROWS = 17  # of an int8 product on a GPU (torch._int_mm)
MULTIPLE = 16  # values in the rows and columns of a quantised product
# torchao would set these for the whole process; here they apply only to its own models
INDUCTOR = {"force_fuse_int_mm_with_mul": True}


def prepare_int8(setting: Setting) -> Ready:
    """Prepare int8 weights and, at run time, int8 activations (see `benchmarks.inference.backend`)."""
    (quantization,) = packages("torchao.quantization")
    config = quantization.Int8DynamicActivationInt8WeightConfig(set_inductor_config=False)
    return prepared(setting, quantization, config, setting.fallback)


def prepare_fp8(setting: Setting) -> Ready:
    """Prepare float8_e4m3fn weights and activations, others in bf16 (see `benchmarks.inference.backend`)."""
    (quantization,) = packages("torchao.quantization")
    if setting.device.type != "cuda":
        raise Skip(f"fp8 products need a CUDA GPU, and this cell's device is {setting.device.type}.")
    capability = torch.cuda.get_device_capability(setting.device)
    if capability < ADA:
        name = torch.cuda.get_device_name(setting.device)
        raise Skip(
            f"fp8 products need compute capability 8.9 or higher, and {name} has "
            f"{capability[0]}.{capability[1]}."
        )
    config = quantization.Float8DynamicActivationFloat8WeightConfig(
        granularity=quantization.PerRow(), set_inductor_config=False
    )
    return prepared(setting, quantization, config, "bf16")


def prepared(setting: Setting, quantization: Any, config: Any, precision: str) -> Ready:
    """Return the model with its linear layers quantised where possible; raise Skip if none can be."""
    require_compiler(setting.device)
    model, forward = forward_of(setting, precision)
    weighted = [layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    wanted = quantisable(model, setting.images.to(next(model.parameters()).dtype))
    if not wanted:
        raise Skip(
            f"torchao quantises linear layers, and none of this model's {len(weighted)} layers is one with "
            f"{FEWEST_ROWS} rows or more an image and widths that are multiples of {MULTIPLE}."
        )
    quantization.quantize_(model, config, filter_fn=lambda layer, name: layer in wanted)
    run = compiled(forward, setting.images, INDUCTOR)
    if setting.device.type == "cuda":
        run = CapturedRun(run, setting.images)
    note = f"What is not quantised is in {precision}; compiled"
    note += ", and replayed as a CUDA graph." if setting.device.type == "cuda" else "."
    return Ready(run, weight_bytes(model), note, {"layers": len(wanted), "of": len(weighted)})


def quantisable(model: nn.Module, images: torch.Tensor) -> set[nn.Module]:
    """Return the linear layers that fit at any batch size, which excludes a head with one row per image.

    images: an example in the type of the model.
    """
    found: set[nn.Module] = set()

    def look(layer: nn.Linear, inputs: tuple) -> None:
        rows = inputs[0].numel() // layer.in_features
        if rows >= FEWEST_ROWS and layer.in_features % MULTIPLE == layer.out_features % MULTIPLE == 0:
            found.add(layer)

    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    hooks = [layer.register_forward_pre_hook(look) for layer in layers]
    with torch.no_grad():
        model(images[:1])
    for hook in hooks:
        hook.remove()
    return found
