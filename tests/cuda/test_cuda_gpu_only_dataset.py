"""The front that holds a split on the GPU, built by a GPU decoder."""

import numpy as np
import pandas as pd
import pytest
import torch
from hostile_fixtures import available, photo, saved
from image_fixtures import MEAN, STD

from gpufeed.cache import open_cache, read_info
from gpufeed.data.manifest import DatasetInfo, Manifest
from gpufeed.gpu_only_dataset import GPUOnlyDataset

COUNT, SIDE = 60, 64


@pytest.fixture
def manifest(tmp_path):
    """60 JPEGs in as many shades, every third one held out."""
    rows = []
    for i in range(COUNT):
        (tmp_path / f"{i}.jpg").write_bytes(saved("JPEG", photo(SIDE, SIDE) // 2 + np.uint8(2 * i)))
        rows.append((f"{i}.jpg", i % 4, "test" if i % 3 == 0 else "train", SIDE, SIDE, 3))
    table = pd.DataFrame(rows, columns=["path", "label", "split", "height", "width", "channels"])
    return Manifest(tmp_path, DatasetInfo("shades", "synthetic", list("abcd"), "test", MEAN, STD), table)


@pytest.mark.parametrize("use_gpu_decode", [True, False])
def test_the_split_is_on_the_gpu(manifest, use_gpu_decode):
    decoder = available("dali_gpu" if use_gpu_decode else "simplejpeg")
    data = GPUOnlyDataset(manifest, use_gpu_decode, workers=2)
    assert data.device.type == "cuda"
    assert data.images.device == data.labels.device == data.device
    assert data.images.is_contiguous(memory_format=torch.channels_last)
    assert read_info(data.cache).decoder == decoder.name
    right = np.array(open_cache(data.cache, manifest))[data.ids].transpose(0, 3, 1, 2)
    assert np.array_equal(data.images.cpu().numpy(), right)
    seen = 0
    for images, labels in data.batches(16, seed=3):
        assert images.device == labels.device == data.device
        seen += len(images)
    assert seen == len(data) == 40


def test_images_may_stay_on_the_host(manifest):
    available("dali_gpu")
    data = GPUOnlyDataset(manifest, device="cpu", max_samples=9, workers=1)
    assert data.images.device.type == "cpu"
    assert len(data) == 9
