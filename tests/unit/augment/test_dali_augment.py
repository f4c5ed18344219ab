"""Augment `dali` in loader dali_cpu, and in dali_gpu where tests/cuda runs this again."""

import numpy as np
import pytest
import torch
from hostile_fixtures import photo, saved
from image_fixtures import MEAN, STD, write_files
from image_fixtures import request as wanted

from gpufeed.augment.base import Normalise
from gpufeed.augment.dali import DRAWN, DaliAugment
from gpufeed.core.errors import GpufeedError
from gpufeed.core.registry import load
from gpufeed.loaders import dali
from gpufeed.training.runtime_context import example_batch

STILL = {"size": None, **dict.fromkeys(DRAWN, 0.0)}
NAMES = [name for _, (name, _, _) in DRAWN.items()]
COUNT = 12


@pytest.fixture
def name():
    return "dali_cpu"


@pytest.fixture
def device():
    return torch.device("cpu")


@pytest.fixture(params=["read", "fed"])
def manifest(tmp_path, request):
    """JPEGs of 24 x 32 pixels; `fed`: one is a CMYK file, which DALI does not take."""
    from PIL import Image

    shades = [photo(24, 32) // 2 + np.uint8(8 * i) for i in range(COUNT)]
    files = [saved("JPEG", shade, quality=95) for shade in shades]
    if request.param == "fed":
        files[7] = saved("JPEG", Image.fromarray(shades[7]).convert("CMYK"))
    return write_files(tmp_path / "photos", files, "jpg", (24, 32))


@pytest.fixture
def opened(manifest, name, device, open_loader):
    """(options, changes of the request) -> an open loader with the augment."""

    def make(options: dict, **changes):
        augment = DaliAugment(MEAN, STD, 3, {**STILL, **options})
        return open_loader(name, wanted(manifest, None, sample_transform=augment, device=device, **changes))

    return make


@pytest.fixture
def epochs_of(opened):
    """(options, changes of the request) -> [{sample id: float32 (3, H, W)} of epochs 0 and 1]."""

    def epochs(options: dict, **changes) -> list[dict[int, torch.Tensor]]:
        loader = opened(options, **changes)
        return [by_id(loader) for _ in range(2)]

    return epochs


def by_id(loader) -> dict[int, torch.Tensor]:
    found = {}
    for batch in loader:
        assert batch.images.dtype == torch.float32
        assert batch.images.device.type == loader.request.device.type
        found.update(zip(batch.ids.tolist(), batch.images.cpu(), strict=True))
    return found


def plain(manifest, name, device) -> dict[int, torch.Tensor]:
    """The same samples by the same loader, normalised by augment none."""
    normalise = Normalise(MEAN, STD, 3, {})
    with load("loader", name)(wanted(manifest, None, device=device)) as loader:
        batches = [(batch.ids.tolist(), normalise(batch.images, batch.ids, 0).cpu()) for batch in loader]
    return {i: image for ids, images in batches for i, image in zip(ids, images, strict=True)}


def assert_equal(found: dict, expected: dict, tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for sample_id, image in found.items():
        torch.testing.assert_close(image, expected[sample_id], atol=tolerance, rtol=0)


def different(one: dict, other: dict) -> int:
    """How many samples have other pixels."""
    return sum(not torch.equal(one[i], other[i]) for i in one)


def test_nothing_switched_on_is_normalise(epochs_of, manifest, name, device):
    for epoch in epochs_of({}):
        assert len(epoch) == COUNT
        assert_equal(epoch, plain(manifest, name, device), 1e-5)


def test_only_a_batch_with_a_file_that_dali_refuses_goes_round(epochs_of, monkeypatch, request):
    went: list[int] = []
    monkeypatch.setattr(dali, "png", lambda image, make=dali.png: went.append(1) or make(image))
    epochs_of({"brightness": 0.1}, batch_size=4)
    fed = "fed" in request.node.name
    assert len(went) == (2 * 4 if fed else 0)  # those of the batch with the CMYK file, in each of two epochs


def test_angle_zero_and_factors_one_change_nothing(epochs_of, manifest, name, device, monkeypatch):
    def middles(self, ids, epoch):
        return {
            value: np.full(len(ids), middle, np.float32)
            for option, (value, middle, _) in DRAWN.items()
            if self.options[option]
        }

    monkeypatch.setattr(DaliAugment, "values", middles)
    found = epochs_of(dict.fromkeys(DRAWN, 0.3))
    one_step = 1 / (255 * min(STD))
    assert_equal(found[0], plain(manifest, name, device), 1.01 * one_step)


@pytest.mark.parametrize("option", DRAWN)
def test_each_option_does_something_in_every_epoch(epochs_of, manifest, name, device, option):
    amount = {"rotate_degrees": 40.0, "hue": 0.3}.get(option, 0.5)
    first, second = epochs_of({option: amount})
    expected = plain(manifest, name, device)
    assert different(first, expected) >= COUNT - 1
    assert different(second, first) >= COUNT - 1


def test_batch_size_and_order_do_not_matter(epochs_of):
    options = {"rotate_degrees": 30.0, "brightness": 0.4, "hue": 0.1}
    expected = epochs_of(options)
    for changes in ({"batch_size": 3}, {"batch_size": COUNT}, {"shuffle": False}):
        for found, right in zip(epochs_of(options, **changes), expected, strict=True):
            assert different(found, right) == 0


def test_resize_is_linear_and_antialiased(epochs_of, manifest, name, device):
    found, expected = epochs_of({"size": 16})[0], plain(manifest, name, device)
    for sample_id, image in found.items():
        assert image.shape == (3, 16, 16)
        resized = torch.nn.functional.interpolate(
            expected[sample_id][None], size=(16, 16), mode="bilinear", antialias=True
        )[0]
        one_step = 1 / (255 * min(STD))
        assert (image - resized).abs().max() < 2 * one_step


def test_rotation_turns_counter_clockwise_and_fills_with_black(epochs_of, manifest, monkeypatch):
    monkeypatch.setattr(
        DaliAugment, "values", lambda self, ids, epoch: {"angle": np.full(len(ids), 90, np.float32)}
    )
    found = epochs_of({"rotate_degrees": 90.0})[0]
    black = -torch.tensor(MEAN) / torch.tensor(STD)
    for image in found.values():
        # a wide image turned by 90 degrees leaves black at its left and right
        torch.testing.assert_close(image[:, 12, 0], black, atol=1e-4, rtol=0)
        torch.testing.assert_close(image[:, 12, 31], black, atol=1e-4, rtol=0)
        assert (image[:, 2:22, 16] - black[:, None]).abs().sum() > 1


def test_values_are_uniform_and_independent_of_what_else_is_on():
    ids = np.arange(20_000)
    everything = DaliAugment(MEAN, STD, 3, {**STILL, **dict.fromkeys(DRAWN, 0.5)}).values(ids, 4)
    assert list(everything) == NAMES
    for option, (name, middle, unit) in DRAWN.items():
        alone = DaliAugment(MEAN, STD, 3, {**STILL, option: 0.5}).values(ids, 4)
        assert list(alone) == [name]
        assert np.array_equal(alone[name], everything[name])
        share = (alone[name] - middle) / (0.5 * unit)  # uniform in -1..1
        assert share.dtype == np.float32
        assert abs(share.mean()) < 0.02
        assert abs(share.std() - 3**-0.5) < 0.02
        assert -1 <= share.min() < -0.99
        assert 0.99 < share.max() <= 1
    assert abs(np.corrcoef(everything["brightness"], everything["contrast"])[0, 1]) < 0.03


def test_a_bad_file_is_named(epochs_of, manifest):
    bad = manifest.paths()[4]
    bad.write_bytes(bad.read_bytes()[:100])
    with pytest.raises(GpufeedError) as error:
        epochs_of({"brightness": 0.1})
    assert str(bad) in error.value.found


@pytest.mark.parametrize(("size", "expected"), [(None, (24, 32)), (16, (16, 16))])
def test_warm_up_has_the_shape_of_what_will_come(manifest, size, expected):
    augment = DaliAugment(MEAN, STD, 3, {**STILL, "size": size})
    example = example_batch(wanted(manifest, None, sample_transform=augment))
    assert example.shape == (5, 3, *expected)
    assert example.dtype == torch.float32


def test_what_dali_has_begun_of_another_epoch_is_not_taken_for_this_one(opened):
    """Unshuffled epochs have the same files; what the augment draws is another for each."""
    loader = opened({"brightness": 0.5}, shuffle=False, batch_size=2)
    first = loader.state_dict()
    expected = by_id(loader)
    for _ in range(2):  # DALI has begun the epoch that comes next
        loader.load_state_dict(first)
        found = by_id(loader)
        assert all(torch.equal(found[i], expected[i]) for i in expected)
