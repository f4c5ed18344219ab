"""Augment `dali` on the GPU: the tests of dali_cpu again, and both give the same pictures."""

import numpy as np
import pytest
import torch
from hostile_fixtures import photo, saved
from image_fixtures import MEAN, STD, request, write_files

# The tests run again here, with the `name` and `device` fixtures of this module.
from test_dali_augment import *  # noqa: F403
from test_dali_augment import STILL, by_id

from gpufeed.augment.dali import DaliAugment
from gpufeed.core.errors import Skip
from gpufeed.core.registry import load
from gpufeed.loaders.dali import DaliLoader

CUDA = torch.device("cuda")


@pytest.fixture(params=["dali_gpu", "dali_cpu"])
def name(request):
    return request.param


@pytest.fixture
def device():
    return CUDA


@pytest.mark.parametrize(
    "options",
    [{"rotate_degrees": 30.0}, {"brightness": 0.3, "contrast": 0.3}, {"saturation": 0.5, "hue": 0.1}],
)
def test_gpu_and_cpu_give_the_same_pictures(tmp_path, options):
    """PNG files, so that only the augment can differ; rounding may, by a step or two."""
    files = [saved("PNG", photo(24, 32) // 2 + np.uint8(8 * i)) for i in range(12)]
    manifest = write_files(tmp_path / "photos", files, "png", (24, 32))
    augment = DaliAugment(MEAN, STD, 3, {**STILL, **options})
    found = {}
    for loader_name in ("dali_cpu", "dali_gpu"):
        made = request(manifest, None, sample_transform=augment, device=CUDA)
        try:
            with load("loader", loader_name)(made) as loader:
                found[loader_name] = by_id(loader)
        except Skip as skip:
            pytest.skip(str(skip))
    one_step = 1 / (255 * min(STD))
    for sample_id, image in found["dali_cpu"].items():
        difference = (image - found["dali_gpu"][sample_id]).abs()
        assert difference.mean() < 0.2 * one_step
        assert (difference > 2.1 * one_step).float().mean() < 0.01


@pytest.mark.parametrize("way", ["read", "fed"])
def test_no_wrong_batch_beside_a_busy_stream(tmp_path, name, way, monkeypatch):
    if way == "fed":
        monkeypatch.setattr(DaliLoader, "not_taken", lambda self: "a file")
    files = [saved("JPEG", photo(24, 32) // 2 + np.uint8(2 * (i % 60))) for i in range(120)]
    manifest = write_files(tmp_path / "photos", files, "jpg", (24, 32))
    augment = DaliAugment(MEAN, STD, 3, STILL)
    made = request(manifest, None, sample_transform=augment, device=CUDA, batch_size=8)
    try:
        with load("loader", name)(made) as loader:
            assert loader.reads == (way == "read")
            expected = torch.stack([image for _, image in sorted(by_id(loader).items())]).to(CUDA)
            wrong = torch.zeros((), dtype=torch.int64, device=CUDA)
            for _ in range(10):
                for batch in loader:
                    torch.cuda._sleep(400_000)
                    wrong += ((batch.images - expected[batch.ids]).abs().mean((1, 2, 3)) > 1e-3).sum()
    except Skip as skip:
        pytest.skip(str(skip))
    assert wrong.item() == 0
