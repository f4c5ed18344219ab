"""ResNet-18 and ResNet-50 of torchvision, with its ImageNet stem or one for small images.

Importing this module imports torchvision (about 3.5 s).
Source: He et al. 2015, arXiv:1512.03385; the small stem is that of its section 4.2 (CIFAR-10).
"""

from torch import nn
from torchvision import models

from gpufeed.core.errors import require_known

STEMS = ("imagenet", "cifar")


def resnet18(num_classes: int, stem: str = "imagenet") -> nn.Module:
    """Return an untrained ResNet-18 over float (N, 3, H, W), giving logits (N, num_classes).

    stem: `imagenet` is torchvision's 7x7 convolution of stride 2 and max-pool, `cifar` a 3x3 convolution
    of stride 1 without pooling. Raises GpufeedError for another one.
    """
    return with_stem(models.resnet18(num_classes=num_classes), stem)


def resnet50(num_classes: int, stem: str = "imagenet") -> nn.Module:
    """Return an untrained ResNet-50; see resnet18."""
    return with_stem(models.resnet50(num_classes=num_classes), stem)


def with_stem(model: models.ResNet, stem: str) -> nn.Module:
    """Return one of torchvision's ResNets with the stem of that name."""
    require_known("model.stem", stem, STEMS)
    if stem == "cifar":
        model.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")  # as torchvision
        model.maxpool = nn.Identity()
    return model
