"""Models: the contract of all that are registered, and what each has of its own."""

import sys
from functools import cache

import pytest
import torch

from gpufeed.core.config import read_hyper
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.registry import MODELS
from gpufeed.models.make import make, portable
from gpufeed.models.simple_cnn import SimpleCNN

SIZES = dict.fromkeys(MODELS, (32, 24)) | {"notebook_cnn": (224, 224)}
SIZE = (32, 24)


def made(name, classes=5, seed=3, **changes):
    """A registered model with its defaults and a seed, for images of its size; skips what is not here."""
    torch.manual_seed(seed)
    try:
        return make(name, classes, SIZES[name], {**read_hyper("model", name), **changes})
    except Skip as lacking:
        pytest.skip(str(lacking))


@pytest.fixture(scope="module")
def usual():
    """As `made` with nothing but a name, each built once; tests leave the weights as they are."""
    return cache(made)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_gives_a_finite_logit_a_class_and_a_gradient_to_every_weight(name, usual):
    model = usual(name).train()
    logits = model(torch.rand(3, 3, *SIZES[name]))
    assert logits.shape == (3, 5)
    assert logits.dtype == torch.float32
    torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1, 4])).backward()
    for key, weight in model.named_parameters():
        assert weight.grad is not None, key
        assert torch.isfinite(weight.grad).all(), key
        assert weight.grad.abs().sum() > 0, key


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_made_by_its_seed_alone(name):
    first, same, other = (made(name, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[key], same[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_gives_the_same_in_either_layout_and_for_each_image_alone(name, usual):
    model, images = usual(name).eval(), torch.rand(4, 3, *SIZES[name])
    with torch.inference_mode():
        expected = model(images)
        laid_out = images.contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(model(laid_out), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(model(images[1:2]), expected[1:2], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_runs_under_autocast(name, usual):
    with torch.autocast("cpu", torch.bfloat16):
        logits = usual(name).eval()(torch.rand(2, 3, *SIZES[name]))
    assert logits.dtype == torch.bfloat16

    assert torch.isfinite(logits).all()


def test_the_notebooks_network_has_its_weights_and_no_other_size():
    model = made("notebook_cnn", classes=10)
    assert sum(weight.numel() for weight in model.parameters()) == 25_710_922
    assert [type(layer).__name__ for layer in model][-3:] == ["ReLU", "Dropout", "Linear"]
    with pytest.raises(GpufeedError, match="224 x 224"):
        make("notebook_cnn", 10, SIZE, read_hyper("model", "notebook_cnn"))


@pytest.mark.parametrize("name", MODELS)
def test_the_portable_form_of_every_model_takes_its_weights(name, usual):
    options = read_hyper("model", name)
    assert set(portable(options)) == set(options)
    made(name, **portable(options)).load_state_dict(usual(name).state_dict())


@pytest.mark.parametrize("side", [1, 2, 7, 28, 32, 65])
def test_simple_cnn_takes_any_size(side):
    assert SimpleCNN(5, batch_norm=True)(torch.rand(2, 3, side, side + 1)).shape == (2, 5)


def test_simple_cnn_has_the_blocks_asked_for():
    convolutions = [m for m in SimpleCNN(10, channels=(4, 6)).modules() if isinstance(m, torch.nn.Conv2d)]
    assert [c.out_channels for c in convolutions] == [4, 6]


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_imagenet_stem_is_torchvisions(name):
    from torchvision import models

    torch.manual_seed(3)
    ours = make(name, 7, (64, 64), {"stem": "imagenet"}).eval()
    torch.manual_seed(3)
    theirs = getattr(models, name)(num_classes=7).eval()
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


def test_a_peers_model_that_is_not_installed_is_skipped_by_its_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    monkeypatch.delitem(sys.modules, "gpufeed.models.timm_vit", raising=False)
    with pytest.raises(Skip, match="Model timm_vit_tiny needs the package timm"):
        make("timm_vit_tiny", 5, SIZE, read_hyper("model", "timm_vit_tiny"))


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"architecture": "vit_tinny"}, "model.architecture 'vit_tinny'"),
        ({"patch": 5}, "32 x 24 pixels for model.patch 5"),
    ],
)
def test_a_peers_model_is_refused_with_what_to_do(changes, found):
    pytest.importorskip("timm")
    with pytest.raises(GpufeedError, match=found):
        made("timm_vit_tiny", **changes)


@pytest.mark.parametrize("size", ["tiny", "small"])
def test_a_peers_model_has_as_many_weights_as_ours(size):
    theirs, ours = made(f"timm_vit_{size}"), made(f"vit_{size}")
    assert sum(w.numel() for w in theirs.parameters()) == sum(w.numel() for w in ours.parameters())
