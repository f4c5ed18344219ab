"""Constraints between the options of a vision transformer, which a schema of single values cannot express.

Standard library only: used while planning.
"""

import math
from collections.abc import Mapping
from typing import Any

from gpufeed.core.errors import GpufeedError, require_known

CHOICES = {
    "pool": ("mean", "class_token"),
    "patches": ("linear", "conv"),
    "activation": ("gelu", "gelu_tanh", "bias_gelu", "linear_bias_gelu"),
    "residual": ("float32", "autocast"),
    "sdpa": ("auto", "flash", "efficient", "cudnn", "math", "packed"),
}
WIDTHS = (16, 32, 64, 128)  # of a head, for the kernels of packed attention
BY_EXTENSION = ("bias_gelu", "linear_bias_gelu")  # activations that are kernels of gpufeed.native
# The same function without the extension, for models that are used and not timed.
PLAIN_FORM = {"bias_gelu": "gelu", "linear_bias_gelu": "gelu_tanh"}
HALF_ONLY = ("flash", "cudnn", "packed")  # without float32 kernels on GPUs
GPU_ONLY = ("efficient", "cudnn", "packed")
WIDEST_HEAD = 256  # of flash attention (torch 2.10); cuDNN's limit is 128 or 256, by GPU
AUX_MULTIPLE = 8  # values in the rows of cuBLASLt's epilogues (native/csrc/cuda/linear_cuda.cpp: fits)


def hidden_width(width: int, mlp_ratio: float) -> int:
    """Return the width between the two layers of an MLP."""
    return round(width * mlp_ratio)


def check(options: Mapping[str, Any], where: str) -> None:
    """Raise GpufeedError for an unknown form, and for options that contradict each other.

    options: those of gpufeed.models.vit.VisionTransformer. where: their place, for the error.
    """
    for key, choices in CHOICES.items():
        require_known(f"model.{key}", options[key], choices, where)
    width, heads, ratio = options["width"], options["heads"], options["mlp_ratio"]
    if width % heads:
        near = [n for n in range(1, width + 1) if width % n == 0 and abs(n - heads) <= max(4, heads)]
        raise GpufeedError(
            f"model.heads {heads} for model.width {width}, in {where}",
            f"a divisor of the width, such as {', '.join(map(str, near[:6]))}",
            "change model.heads or model.width",
        )
    if options["sdpa"] == "flash" and width // heads > WIDEST_HEAD:
        raise GpufeedError(
            f"heads of {width // heads} values with model.sdpa flash, in {where}",
            f"at most {WIDEST_HEAD}",
            "raise model.heads or take another model.sdpa",
        )
    if options["sdpa"] == "packed" and width // heads not in WIDTHS:
        raise GpufeedError(
            f"heads of {width // heads} values with model.sdpa packed, in {where}",
            f"one of {', '.join(map(str, WIDTHS))}",
            "change model.heads or model.width, or take another model.sdpa",
        )
    hidden = hidden_width(width, ratio)
    if not math.isclose(hidden, width * ratio) or hidden < 1:
        raise GpufeedError(
            f"model.mlp_ratio {ratio}, which makes {width * ratio} of width {width}, in {where}",
            "a ratio that gives a whole number of 1 or more",
            "change model.mlp_ratio or model.width",
        )
    if options["activation"] == "linear_bias_gelu" and (hidden % AUX_MULTIPLE or width % AUX_MULTIPLE):
        raise GpufeedError(
            f"an MLP of widths {width} and {hidden} with model.activation linear_bias_gelu, in {where}",
            f"multiples of {AUX_MULTIPLE}, which the epilogue of cuBLASLt needs",
            "change model.width or model.mlp_ratio, or take bias_gelu",
        )


def impossible(options: Mapping[str, Any], precision: str, device: str) -> str | None:
    """Return why these options exclude a cell on any machine, as a sentence; None if they do not.

    options: of any model. precision, device: as in the config, `auto` included.
    """
    backend = options.get("sdpa")
    if backend in HALF_ONLY and precision in ("fp32", "tf32") and device != "cpu":
        return f"SDPA backend {backend} has no float32 kernels on GPUs, so precision cannot be {precision}"
    if backend in GPU_ONLY and device in ("cpu", "mps"):
        return f"SDPA backend {backend} needs a CUDA GPU, and the config says device {device}"
    return None
