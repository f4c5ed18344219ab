"""Models by name, for a number of classes and a size of images."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from gpufeed import plugins
from gpufeed.core.references import is_reference
from gpufeed.core.registry import MODELS, fetch, lacking
from gpufeed.core.vit_options import PLAIN_FORM


def make(name: str, num_classes: int, image_size: tuple[int, int], options: Mapping[str, Any]) -> nn.Module:
    """Make the model `name`, registered or a reference, on the CPU: float (N, 3, H, W) to (N, num_classes).

    image_size: (height, width) of its images; models for any size ignore it. Raises Skip if a package that it
    needs is missing, GpufeedError for options that it refuses.
    """
    if is_reference(name):
        return referred_to(name, num_classes, image_size, options)
    size = (image_size,) if MODELS[name].sized else ()
    return fetch("model", name)(num_classes, *size, **options)


def referred_to(
    reference: str, num_classes: int, image_size: tuple[int, int], options: Mapping[str, Any]
) -> nn.Module:
    """Make a model by reference; raise GpufeedError if its output does not fit the dataset's classes."""
    try:
        model = plugins.make_model(reference, num_classes, image_size, options)
    except ModuleNotFoundError as error:
        raise lacking("model", reference, error) from error
    plugins.check_output(model, reference, num_classes, image_size)
    return model


def portable(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with which a trained model computes the same on any device.

    Kernels that only some nodes have are replaced by torch's own, with the same form of GELU.
    """
    changes = {"sdpa": "auto", "activation": PLAIN_FORM.get(options.get("activation"))}
    return {**options, **{key: value for key, value in changes.items() if value and key in options}}


def require(model: nn.Module, device: torch.device, precision: str) -> None:
    """Raise Skip if this node cannot run the kernels in the model's options, so that no others are timed.

    precision: fp32 | tf32 | fp16 | bf16.
    """
    if hasattr(model, "require"):
        model.require(device, precision)
