"""The reference augment: rotation, brightness, contrast, salt and pepper, and the types that come out."""

import re

import numpy as np
import pytest
import torch
from augment_fixtures import EVERYTHING, expected
from hypothesis import given, settings
from hypothesis import strategies as st
from image_fixtures import MEAN, STD
from test_augment import images
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F

from gpufeed.augment import reference
from gpufeed.augment.on_batches import batch_augment
from gpufeed.augment.reference import TorchAugment
from gpufeed.core.errors import GpufeedError
from gpufeed.system import random_draws
from gpufeed.system.random_draws import philox

PLAIN = {"crop_padding": 0, "flip_probability": 0.0}


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [  # kat_vectors of Random123 1.14
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((2**32 - 1,) * 4, (2**32 - 1,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_published_answers(counter, key, answer):
    words = philox(tuple(torch.tensor(word) for word in counter), key)
    assert " ".join(f"{word.item():08x}" for word in words) == answer


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 10**6),
    ids=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=3),
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    options=st.fixed_dictionaries(
        {
            "crop_padding": st.integers(0, 5),
            "rotate_degrees": st.sampled_from([0.0, 30.0, 180.0]),
            "brightness": st.sampled_from([0.0, 0.3, 1.0]),
            "contrast": st.sampled_from([0.0, 0.6, 1.0]),
            "contrast_pivot": st.sampled_from([0.0, 0.45, 1.0]),
            "salt_pepper": st.sampled_from([0.0, 0.2, 1.0]),
        }
    ),
)
def test_every_step_against_float64(seed, epoch, ids, size, options):
    batch = images(len(ids), *size)
    out = TorchAugment(MEAN, STD, seed, options)(batch, torch.tensor(ids), epoch)
    for n, sample_id in enumerate(ids):
        want = expected(batch[n].numpy(), sample_id, epoch, MEAN, STD, seed, options)
        # float32: coordinates of a 9-pixel image are exact to 1e-6 of a pixel, values to 255e-6 / std
        np.testing.assert_allclose(out[n].numpy(), want, atol=2e-5)


@pytest.mark.parametrize("degrees", [-150.0, -20.0, 7.5, 90.0])
def test_rotation_is_the_one_of_torchvision(degrees):
    batch = images(3, 11, 8).float()
    ours = reference.rotate(batch, torch.full((3,), degrees)).permute(0, 3, 1, 2)
    theirs = F.rotate(batch.permute(0, 3, 1, 2), degrees, interpolation=InterpolationMode.BILINEAR)
    torch.testing.assert_close(ours, theirs, atol=5e-3, rtol=0)


def test_whatever_the_batch_a_sample_gets_the_same_pixels():
    augment = TorchAugment(MEAN, STD, 2, EVERYTHING)
    batch, ids = images(12), torch.arange(100, 112)
    whole = augment(batch, ids, 1)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    assert torch.equal(augment(batch[order], ids[order], 1), whole[order])
    assert torch.equal(augment(batch[5:6], ids[5:6], 1), whole[5:6])
    assert torch.equal(augment(batch, ids, torch.tensor(1)), whole)
    assert not torch.equal(augment(batch, ids, 2), whole)
    assert not torch.equal(TorchAugment(MEAN, STD, 3, EVERYTHING)(batch, ids, 1), whole)


def test_noise_is_as_frequent_as_asked_for_and_even_over_places_and_samples():
    probability, n = 0.1, 400
    words = reference.noise(7, 3, torch.arange(n), 8, 8)
    pepper, salt = (words < 0.05 * 2**32), (words >= 0.95 * 2**32)
    for kind in (pepper, salt):
        count, total = kind.sum().item(), n * 64
        spread = (total * 0.05 * 0.95) ** 0.5
        assert abs(count - total * probability / 2) < 5 * spread
        # 400 samples a place: 20 expected, and 5 standard deviations are 22
        assert kind.sum(dim=0).max() < 20 + 22
        assert kind.sum(dim=0).min() > 0


def test_off_means_untouched():
    batch, ids = images(4), torch.arange(4)
    plain = TorchAugment(MEAN, STD, 5, {})(batch, ids, 0)
    off = dict.fromkeys(("rotate_degrees", "brightness", "contrast", "salt_pepper"), 0.0)
    assert torch.equal(TorchAugment(MEAN, STD, 5, off)(batch, ids, 0), plain)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dtype_and_order_in_memory(dtype):
    out = TorchAugment(MEAN, STD, 0, {"dtype": dtype, "salt_pepper": 0.1})(images(2), torch.arange(2), 0)
    assert out.dtype == getattr(torch, dtype)
    assert out.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", ["torch", "fused", "chain"])
@pytest.mark.parametrize(
    "options",
    [
        {"crop_paddin": 2},
        {"flip_probability": "x"},
        {"salt_pepper": 1.01},
        {"salt_pepper": -0.1},
        {"brightness": 2},
        {"contrast": "x"},
        {"contrast_pivot": True},
        {"dtype": "float64"},
        {"crop_padding": -1},
        ["brightness"],
    ],
)
def test_bad_options_are_told(name, options):
    with pytest.raises(GpufeedError, match=next(iter(options))):
        batch_augment(name, options=options)


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 8, 8, 3), (2, 1, 8, 8)])
def test_batches_of_another_shape_are_told_theirs(shape):
    with pytest.raises(GpufeedError, match=re.escape(f"{shape}\nexpected: (N, 3, H, W)")):
        batch_augment("torch")(torch.zeros(shape, dtype=torch.uint8))


def test_an_option_of_an_augment_without_options_is_to_be_removed():
    with pytest.raises(GpufeedError, match="expected: no options\nwhat to do: remove 'a'"):
        batch_augment("none", options={"a": 1})


def test_an_unknown_exchange_is_told_with_the_choices():
    with pytest.raises(GpufeedError, match=r"exchange: 'disk'.*\n.*dlpack, host"):
        batch_augment("chain", options={"exchange": "disk"})
    with pytest.raises(GpufeedError, match="exchange"):  # of the chain alone
        batch_augment("torch", options={"exchange": "host"})


@pytest.mark.parametrize(
    ("batch", "ids", "found"),
    [
        (torch.zeros(2, 4, 4, 3), torch.arange(2), "images of torch.float32"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.arange(2), "shape"),
        (torch.zeros(0, 4, 4, 3, dtype=torch.uint8), torch.arange(0), "empty batch"),
        (torch.zeros(2, 4, 4, 3, dtype=torch.uint8), torch.arange(3), "sample ids"),
        (torch.zeros(2, 4, 4, 3, dtype=torch.uint8), torch.arange(2.0), "sample ids"),
    ],
)
def test_bad_batches_are_told(batch, ids, found):
    with pytest.raises(GpufeedError, match=found):
        TorchAugment(MEAN, STD, 0, {})(batch, ids, 0)


def test_a_uniform_draw_spans_its_bounds():
    numbers = torch.tensor([0, 2**31, 2**32 - 1])
    torch.testing.assert_close(random_draws.uniform(numbers, 0.8, 1.2), torch.tensor([0.8, 1.0, 1.2]))
