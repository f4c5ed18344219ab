"""Backends that decode strips, and their choice: nvImageCodec, torchvision or the CPU's cores."""

import logging
from importlib import import_module

import torch

from gpufeed.core.errors import Skip, unknown
from gpufeed.stores.strip_backends.base import StripBackend

# in order of preference: nvImageCodec differs from Pillow at the seams alone, torchvision repeats chroma
# pixels
BACKENDS = {
    "nvimgcodec": "gpufeed.stores.strip_backends.nvimgcodec:NvImageCodecStrips",
    "torchvision_cuda": "gpufeed.stores.strip_backends.torchvision_cuda:TorchvisionStrips",
    "cpu": "gpufeed.stores.strip_backends.cpu:CpuStrips",
}
log = logging.getLogger("gpufeed")


def open_backend(device: torch.device, threads: int, name: str | None = None) -> StripBackend:
    """Return the named backend, or the first that this node can run for `device`.

    threads: cores that it may use. Raises Skip with the reason if the named one cannot run here, and
    GpufeedError for an unknown name.
    """
    if name is not None:
        return backend_class(name)(device, threads)
    for candidate in BACKENDS if device.type == "cuda" else ["cpu"]:
        try:
            return backend_class(candidate)(device, threads)
        except Skip as skip:
            log.info("%s", skip)
    raise Skip("No decoder for strips can be used on this node; the log has each one's reason.")


def backend_class(name: str) -> type[StripBackend]:
    """Return the class of a backend; importing it needs nothing that a node may lack."""
    if name not in BACKENDS:
        raise unknown("strip backend", name, BACKENDS, where="gpufeed/stores/strip_backends")
    module, _, attribute = BACKENDS[name].partition(":")
    return getattr(import_module(module), attribute)
