"""The small convolutional network of the pipelining experiment, for images of any size."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn


def block(inputs: int, outputs: int, batch_norm: bool) -> nn.Sequential:
    """Return convolution, optional batch norm, ReLU, pooling: (N, inputs, H, W) -> (N, outputs, H/2, W/2)."""
    layers: list[nn.Module] = [nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=not batch_norm)]
    if batch_norm:
        layers.append(nn.BatchNorm2d(outputs))
    # ceil_mode: a side of one pixel stays one pixel, so that no input is too small
    return nn.Sequential(*layers, nn.ReLU(inplace=True), nn.MaxPool2d(2, ceil_mode=True))


class SimpleCNN(nn.Module):
    """Convolution blocks, mean over the remaining pixels, one linear layer.

    Input float (N, 3, H, W), output logits (N, num_classes). channels: outputs of each block.
    """

    def __init__(self, num_classes: int, channels: Sequence[int] = (32, 64, 128), batch_norm: bool = False):
        super().__init__()
        widths = [3, *channels]
        self.features = nn.Sequential(
            *(block(inputs, outputs, batch_norm) for inputs, outputs in pairwise(widths))
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(widths[-1], num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.pool(self.features(images))  # (N, C, 1, 1)
        return self.classifier(features.flatten(1))  # (N, num_classes)
