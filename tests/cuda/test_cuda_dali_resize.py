"""Images of several sizes on the GPU: the tests of dali_cpu again, and both resize alike."""

import numpy as np
import pytest
import torch
from hostile_fixtures import photo, saved
from image_fixtures import request as wanted

# The tests run again here, with the `name` and `device` fixtures of this module.
from test_dali_resize import *  # noqa: F403
from test_dali_resize import SIDES, SIZES, one_by_one, scene, written

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


@pytest.mark.parametrize("size", SIZES)
def test_gpu_and_cpu_resize_alike(tmp_path, size):
    """PNG files, so that only the resize can differ; by one step, where one of them rounds up."""
    files = [(saved("PNG", scene(i, *sides)), sides) for i, sides in enumerate(SIDES * 2)]
    manifest = written(tmp_path / "files", files, size)
    found = {}
    for loader_name in ("dali_cpu", "dali_gpu"):
        try:
            with load("loader", loader_name)(wanted(manifest, None, device=CUDA)) as loader:
                assert loader.reads
                images = {i: image for batch in loader for i, image in one_by_one(batch)}
                found[loader_name] = {i: image.to(torch.int16) for i, image in images.items()}
                assert loader.reads
                assert loader.decode_counts.fell_back == {}
        except Skip as skip:
            pytest.skip(str(skip))
    for sample_id, image in found["dali_cpu"].items():
        difference = (image - found["dali_gpu"][sample_id]).abs()
        assert difference.max() <= 1
        assert difference.float().mean() < 0.1


@pytest.mark.parametrize("way", ["read", "fed"])
def test_no_wrong_batch_beside_a_busy_stream(tmp_path, name, way, monkeypatch):
    """Images of other sizes in each batch, so that DALI's memory is cut anew each time."""
    if way == "fed":
        monkeypatch.setattr(DaliLoader, "not_taken", lambda self: "a file")
    files = []
    for i in range(140):
        sides = (20 + 7 * (i % 31), 150 - 4 * (i % 29))
        files.append((saved("JPEG", photo(*sides) // 2 + np.uint8(2 * (i % 60))), sides))
    manifest = written(tmp_path / "files", files, (48, 64))
    made = wanted(manifest, None, device=CUDA, batch_size=8, threads=4)
    try:
        with load("loader", name)(made) as loader:
            assert loader.reads == (way == "read")
            expected = torch.zeros((len(manifest), 48, 64, 3), dtype=torch.uint8, device=CUDA)
            for batch in loader:
                expected[batch.ids] = batch.images
                torch.cuda.synchronize()
            busy = torch.cuda.Stream()
            wrong = torch.zeros((), dtype=torch.int64, device=CUDA)
            for _ in range(10):
                for batch in loader:
                    with torch.cuda.stream(busy):
                        torch.cuda._sleep(200_000)
                    torch.cuda._sleep(400_000)
                    difference = (batch.images.float() - expected[batch.ids].float()).abs()
                    wrong += (difference.mean((1, 2, 3)) > 0.5).sum()  # shades are two steps apart
    except Skip as skip:
        pytest.skip(str(skip))
    assert wrong.item() == 0
