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
    """Return the model `name`, registered or a reference, on the CPU: float (N, 3, H, W) to logits (N,
    num_classes).

    image_size: (height, width) of the images that it will get, which models of any size do not read.
    Raises Skip if a package that it needs is missing, GpufeedError for options that it refuses.
    """
    if is_reference(name):
        return referred_to(name, num_classes, image_size, options)
    size = (image_size,) if MODELS[name].sized else ()
    return fetch("model", name)(num_classes, *size, **options)


def referred_to(
    reference: str, num_classes: int, image_size: tuple[int, int], options: Mapping[str, Any]
) -> nn.Module:
    """As make, of a reference; one that gives no logits of this dataset is refused before it trains."""
    try:
        model = plugins.make_model(reference, num_classes, image_size, options)
    except ModuleNotFoundError as error:
        raise lacking("model", reference, error) from error
    plugins.check_output(model, reference, num_classes, image_size)
    return model


def portable(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the same function of the same weights that run on any device: for models that are
    used.

    Kernels that only some nodes have give way to torch's own, in the same form of GELU.
    """
    changes = {"sdpa": "auto", "activation": PLAIN_FORM.get(options.get("activation"))}
    return {**options, **{key: value for key, value in changes.items() if value and key in options}}


def require(model: nn.Module, device: torch.device, precision: str) -> None:
    """Raise Skip if this node lacks what the model is labelled with, so that nothing else is timed for it.

    precision: fp32 | tf32 | fp16 | bf16.
    """
    if hasattr(model, "require"):
        model.require(device, precision)
