"""bias-GELU and JPEGs as C++ and CUDA kernels, with plain torch where they cannot be built. See README.md."""

from gpufeed.native.functions import bias_gelu, gelu_mlp, linear_bias_gelu
from gpufeed.native.loading import Status, load, status

__all__ = ["Status", "bias_gelu", "gelu_mlp", "linear_bias_gelu", "load", "status"]
