"""The recipe random_resized_crop: its windows by the rule, and its pixels as torchvision makes them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.stats import ks_2samp
from torchvision.transforms import RandomResizedCrop as Torchvisions
from torchvision.transforms import functional as F
from window_fixtures import picture

from gpufeed.augment.random_resized_crop import RandomResizedCrop, Window

SIDES = st.integers(1, 3000)
RECIPES = st.builds(
    RandomResizedCrop,
    size=st.integers(1, 64),
    scale=st.sampled_from([(0.08, 1.0), (0.25, 0.25), (1.0, 1.0), (1e-6, 1e-3)]),
    ratio=st.sampled_from([(3 / 4, 4 / 3), (1.0, 1.0), (0.1, 10.0), (5.0, 6.0)]),
    flip_probability=st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    seed=st.integers(0, 2**64 - 1),
    training=st.booleans(),
)


@given(
    recipe=RECIPES, sizes=st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=30), epoch=st.integers(0, 9)
)
def test_windows_lie_in_their_images_and_one_alone_is_the_same(recipe, sizes, epoch):
    ids = torch.arange(5, 5 + len(sizes))
    heights, widths = torch.tensor(sizes).unbind(1)
    windows = list(recipe.windows(ids, epoch, heights, widths))
    assert windows == [recipe.window(i, epoch, *size) for i, size in zip(ids.tolist(), sizes, strict=True)]
    for window, (height, width) in zip(windows, sizes, strict=True):
        assert 0 <= window.top <= window.top + window.height <= height
        assert 0 <= window.left <= window.left + window.width <= width
        assert window.height >= 1 <= window.width
    # an epoch may be a tensor, as in a captured graph, and neither batch nor order matters
    back = recipe.windows(ids.flip(0), torch.tensor(epoch), heights.flip(0), widths.flip(0))
    assert list(back) == windows[::-1]


def test_seed_epoch_and_sample_decide():
    places = {
        RandomResizedCrop(224, seed=seed).window(sample_id, epoch, 375, 500)
        for seed in (0, 1, 2**40)
        for epoch in range(5)
        for sample_id in range(20)
    }
    assert len(places) == 300


def test_windows_are_distributed_as_torchvisions():
    torch.manual_seed(0)
    n, height, width = 5_000, 375, 500
    image = torch.empty(3, height, width)
    theirs = np.array([Torchvisions.get_params(image, (0.08, 1.0), (3 / 4, 4 / 3)) for _ in range(n)])
    full = [torch.full((n,), side) for side in (height, width)]
    found = RandomResizedCrop(224).windows(torch.arange(n), 0, *full)
    ours = torch.stack([found.top, found.left, found.height, found.width], dim=1).numpy()
    for of in (ours, theirs):
        assert of.shape == (n, 4)
    for what in (
        lambda w: w[:, 2] * w[:, 3],
        lambda w: w[:, 3] / w[:, 2],
        lambda w: w[:, 0] / np.maximum(1, height - w[:, 2]),
        lambda w: w[:, 1] / np.maximum(1, width - w[:, 3]),
    ):
        assert ks_2samp(what(ours), what(theirs)).pvalue > 0.001
    assert found.flip.float().mean() == pytest.approx(0.5, abs=0.02)
    one_flip = RandomResizedCrop(224, flip_probability=1.0).windows(torch.arange(n), 0, *full).flip
    assert one_flip.all()


@pytest.mark.parametrize(
    ("size", "expected"), [((100, 1000), (100, 133)), ((1000, 100), (133, 100)), ((90, 100), (90, 100))]
)
def test_where_no_draw_fits_the_largest_window_in_the_middle_is_taken(size, expected):
    recipe = RandomResizedCrop(8, scale=(1.0, 1.0), ratio=(3 / 4, 4 / 3), flip_probability=0.0)
    windows = {recipe.window(i, 0, *size) for i in range(20)}
    height, width = expected
    middle = Window((size[0] - height) // 2, (size[1] - width) // 2, height, width, 8, 8, 0, 0, False)
    if size == (90, 100):  # draws fit at times, and then they are the whole image or nearly
        assert all(window.height >= 85 for window in windows)
    else:
        assert windows == {middle}


@settings(max_examples=30)
@given(st.integers(1, 200), st.integers(1, 200), st.integers(0, 99), st.integers(1, 40))
def test_a_sample_is_what_torchvision_makes_of_the_window(height, width, sample_id, size):
    image, recipe = picture(height, width, sample_id), RandomResizedCrop(size)
    window = recipe.window(sample_id, 0, height, width)
    place = window.top, window.left, window.height, window.width
    expected = F.resized_crop(Image.fromarray(image), *place, [size, size], F.InterpolationMode.BILINEAR)
    expected = F.hflip(expected) if window.flip else expected
    assert np.array_equal(recipe.cut(image, window), np.asarray(expected))


@pytest.mark.parametrize(("height", "width"), [(375, 500), (500, 375), (300, 300), (60, 200), (257, 991)])
def test_evaluation_is_torchvisions_resize_and_centre_crop(height, width):
    image, recipe = picture(height, width, 0), RandomResizedCrop(224, short_side=256).for_evaluation()
    window = recipe.window(3, 7, height, width)
    resized = F.resize(Image.fromarray(image), 256, F.InterpolationMode.BILINEAR)
    assert resized.size == (window.columns, window.rows)
    top, left = (resized.height - 224) // 2, (resized.width - 224) // 2
    assert np.array_equal(recipe.cut(image, window), np.asarray(F.crop(resized, top, left, 224, 224)))
    assert window == recipe.window(4, 0, height, width)


def test_a_window_of_an_image_that_was_scaled_down_covers_the_same_part():
    ramp = np.linspace(0, 255, 400)[None, :, None].repeat(300, 0).repeat(3, 2)
    whole, half = ramp.astype(np.uint8), ramp.reshape(150, 2, 200, 2, 3).mean((1, 3)).astype(np.uint8)
    recipe = RandomResizedCrop(32, flip_probability=0.0)
    for sample_id in range(20):
        window = recipe.window(sample_id, 0, 300, 400)
        one, other = (
            recipe.cut(image, window, factor).astype(int) for image, factor in ((whole, 1), (half, 2))
        )
        assert np.abs(one - other).max() <= 1
