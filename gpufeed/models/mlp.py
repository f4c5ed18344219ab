"""The MLP of a transformer block, with its activation written four ways over the same weights."""

import torch
from torch import nn
from torch.nn import functional as F

from gpufeed import native


class Mlp(nn.Module):
    """linear, bias, GELU, linear: float (..., width) to (..., width). The weights do not depend on the form.

    activation: `gelu` (erf) and `gelu_tanh` are torch's, after a linear layer with its bias; `bias_gelu`
    (erf) is the kernel that adds the bias and applies GELU in one pass; `linear_bias_gelu` (tanh) does both
    in the matrix product, forward and backward.
    """

    def __init__(self, width: int, hidden: int, activation: str):
        super().__init__()
        self.activation = activation
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.fc1, self.fc2
        if self.activation == "linear_bias_gelu":
            return native.gelu_mlp(x, first.weight, first.bias, second.weight, second.bias)
        if self.activation == "bias_gelu":
            return second(native.bias_gelu(F.linear(x, first.weight), first.bias, "none"))
        return second(F.gelu(first(x), approximate="tanh" if self.activation == "gelu_tanh" else "none"))
