import pytest
import torch

from gpufeed.errors import GpufeedError
from gpufeed.models.simple_cnn import SimpleCNN


@pytest.mark.parametrize("side", [1, 2, 7, 28, 32, 65])
def test_simple_cnn_takes_any_size(side):
    assert SimpleCNN(5, batch_norm=True)(torch.rand(2, 3, side, side + 1)).shape == (2, 5)


def test_simple_cnn_has_the_blocks_asked_for():
    convolutions = [m for m in SimpleCNN(10, channels=(4, 6)).modules() if isinstance(m, torch.nn.Conv2d)]
    assert [c.out_channels for c in convolutions] == [4, 6]


def test_imagenet_stem_is_torchvisions_resnet18():
    from torchvision import models

    from gpufeed.models.resnet import resnet18

    torch.manual_seed(3)
    ours = resnet18(num_classes=7, stem="imagenet").eval()
    torch.manual_seed(3)
    theirs = models.resnet18(num_classes=7).eval()
    assert list(ours.state_dict()) == list(theirs.state_dict())
    images = torch.rand(2, 3, 64, 64)
    with torch.inference_mode():
        assert torch.equal(ours(images), theirs(images))


def test_cifar_stem_keeps_the_resolution():
    from gpufeed.models.resnet import resnet18

    model = resnet18(num_classes=10, stem="cifar").eval()
    images = torch.rand(1, 3, 32, 32)
    with torch.inference_mode():
        before_layer1 = model.maxpool(model.relu(model.bn1(model.conv1(images))))
        assert before_layer1.shape == (1, 64, 32, 32)
        assert model(images).shape == (1, 10)


def test_unknown_stem_is_told_with_the_choices():
    from gpufeed.models.resnet import resnet18

    with pytest.raises(GpufeedError, match="cifar, imagenet"):
        resnet18(num_classes=10, stem="cifer")
