import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from image_fixtures import MEAN, STD
from PIL import Image
from torchvision import transforms

from gpufeed.augment.base import Normalise
from gpufeed.augment.cpu import CpuAugment
from gpufeed.augment.reference import TorchAugment
from gpufeed.core.errors import GpufeedError
from gpufeed.core.registry import AUGMENTS, load
from gpufeed.system import random_draws

U32 = st.integers(0, 2**32 - 1)


def images(count: int, height: int = 9, width: int = 7) -> torch.Tensor:
    """uint8 (count, height, width, 3), every pixel different enough to tell a shift."""
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (count, height, width, 3), np.uint8))


@pytest.mark.parametrize("name", AUGMENTS)
def test_registered_augments_keep_the_contract(name):
    if AUGMENTS[name].device == "cuda":
        pytest.skip("tests/cuda has it")
    augment = load("augment", name)(MEAN, STD, 1, {})
    batch = images(4)
    if augment.where == "loader":
        out = None  # test_dali_augment.py runs it in its loader
    elif augment.where == "sample":
        out = torch.stack([augment(image, i, 0) for i, image in enumerate(batch)])
    else:
        out = augment(batch, torch.arange(4), 0)
    assert out is None or (out.shape, out.dtype) == ((4, 3, 9, 7), torch.float32)
    assert augment.output_size(9, 7) == (9, 7)
    with pytest.raises(GpufeedError, match="augment option"):
        type(augment)(MEAN, STD, 1, {"crop_paddin": 2})


@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_the_cpu_augment_on_pil_images_is_the_notebooks_transform(flip):
    chain = [transforms.Resize((9, 7)), transforms.RandomHorizontalFlip(flip), transforms.ToTensor()]
    usual = transforms.Compose([*chain, transforms.Normalize(MEAN, STD)])
    ours = CpuAugment(MEAN, STD, 5, {"crop_padding": 0, "flip_probability": flip, "pil": True})
    for sample_id, image in enumerate(images(3)):
        found = ours(image, sample_id, 1)
        assert torch.equal(found, usual(Image.fromarray(image.numpy())))
        assert found.is_contiguous()


def test_the_cpu_augment_draws_alike_on_tensors_and_on_pil_images():
    options = {"crop_padding": 3, "flip_probability": 0.5}
    tensors, pil = (CpuAugment(MEAN, STD, 5, {**options, "pil": pil}) for pil in (False, True))
    for sample_id, image in enumerate(images(8)):
        torch.testing.assert_close(pil(image, sample_id, 2), tensors(image, sample_id, 2), atol=1e-5, rtol=0)


def test_normalise_against_float64():
    batch = images(3)
    expected = (batch.double() / 255 - torch.tensor(MEAN).double()) / torch.tensor(STD).double()
    out = Normalise(MEAN, STD, 0, {})(batch, torch.arange(3), 0)
    torch.testing.assert_close(out.double(), expected.permute(0, 3, 1, 2), atol=1e-5, rtol=0)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 10**6),
    ids=st.lists(U32, min_size=1, max_size=6),
    padding=st.integers(0, 12),
    probability=st.sampled_from([0.0, 0.3, 0.5, 1.0]),
)
def test_cpu_and_torch_give_the_same_pixels(seed, epoch, ids, padding, probability):
    options = {"crop_padding": padding, "flip_probability": probability}
    one, many = (cls(MEAN, STD, seed, options) for cls in (CpuAugment, TorchAugment))
    batch = images(len(ids))
    expected = torch.stack([one(image, i, epoch) for i, image in zip(ids, batch, strict=True)])
    torch.testing.assert_close(many(batch, torch.tensor(ids), epoch), expected, atol=1e-5, rtol=0)


def test_epochs_and_seeds_draw_anew():
    ids = torch.arange(200)
    crops = {
        (seed, epoch): torch.stack(TorchAugment(MEAN, STD, seed, {}).crops(ids, epoch))
        for seed in (0, 1, 2**32)
        for epoch in (0, 1)
    }
    for one in crops:
        for other in crops:
            same = (crops[one] == crops[other]).all(dim=0).float().mean()
            assert same == 1 if one == other else same < 0.05


def test_draws_are_even():
    top, left, flip = TorchAugment(MEAN, STD, 0, {}).crops(torch.arange(81_000), 3)
    cells = torch.bincount(top * 9 + left, minlength=81)
    assert len(cells) == 81
    # 1000 expected in each cell, so chi-square with 80 degrees of freedom: 150 has p = 3e-6
    assert ((cells - 1000.0) ** 2 / 1000).sum() < 150
    assert abs(flip.float().mean() - 0.5) < 0.01


@settings(max_examples=100)
@given(U32, U32)
def test_ints_and_tensors_draw_alike(state, value):
    assert (
        random_draws.fold(state, value) == random_draws.fold(torch.tensor(state), torch.tensor(value)).item()
    )
    assert 0 <= random_draws.fold(state, value) < 2**32


def test_mix_is_a_bijection_on_a_sample():
    assert len(torch.unique(random_draws.mix(torch.arange(1_000_000)))) == 1_000_000


def test_sample_augment_travels_to_workers():
    augment = CpuAugment(MEAN, STD, 3, {})
    image = images(1)[0]
    assert torch.equal(pickle.loads(pickle.dumps(augment))(image, 4, 5), augment(image, 4, 5))
