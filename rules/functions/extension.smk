# The library of our C++ and CUDA kernels, and who needs it.

from gpufeed.models.vit_options import BY_EXTENSION
from gpufeed.registry import takes_extension

EXTENSION = f"{RESULTS}/extension/gpufeed_ops.so"
ABOUT_EXTENSION = f"{RESULTS}/extension/gpufeed_ops.json"


def extension_of(wildcards):
    """The library of a cell whose model's activation is a kernel of ours."""
    activation = cell_of(wildcards).hyper["model"].get("activation")
    return EXTENSION if activation in BY_EXTENSION else []


def extension_of_decoder(wildcards):
    """The library for a job that decodes by it."""
    return EXTENSION if takes_extension(wildcards.decoder) else []
