"""The front that holds a split on the GPU, built by a GPU decoder."""

import numpy as np
import pandas as pd
import pytest
import torch
from hostile_fixtures import available, photo, saved
from image_fixtures import MEAN, STD
from PIL import Image
from torch.utils.data import DataLoader

from gpufeed.augment.base import Normalise
from gpufeed.core.errors import GpufeedError
from gpufeed.datasets import image_folder
from gpufeed.datasets.manifest import DatasetInfo, Manifest
from gpufeed.decoders.dali_gpu import DaliGpuDecoder
from gpufeed.decoders.fallback import resize_tolerance
from gpufeed.decoders.pillow import PillowDecoder, resized
from gpufeed.loaders import gpu_only_dataset
from gpufeed.loaders.gpu_only_dataset import DECODING_BYTES, GPUOnlyDataset
from gpufeed.stores.cache_format import CacheInfo, open_cache

COUNT, SIDE = 60, 64
SIZE = (48, 40)
OPTIONS = {"image_size": SIZE, "workers": 2, "max_quarantined_share": 0.1}


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
    assert CacheInfo.read(data.cache).decoder == decoder.name
    right = np.array(open_cache(data.cache, manifest))[data.ids].transpose(0, 3, 1, 2)
    assert np.array_equal(data.images.cpu().numpy(), right)
    seen = 0
    for images, labels in data.batches(16, seed=3):
        assert images.device == labels.device == data.device
        seen += len(images)
    assert seen == len(data) == 40


@pytest.fixture
def wild(tmp_path):
    """A plain folder of 41 images of several sizes: some are not what their names say, and one is broken."""
    files = {}
    for i in range(24):
        image = Image.fromarray(photo(60 + 9 * i, 150 - 4 * i) // 2 + np.uint8(3 * i))
        files[f"{'ab'[i % 2]}/{i:02}.jpg"] = saved("JPEG", image, quality=92)
        if i % 6 == 1:
            files[f"a/png {i}.jpg"], files[f"b/jpeg {i}.png"] = saved("PNG", image), saved("JPEG", image)
            files[f"a/cmyk {i}.jpg"] = saved("JPEG", image.convert("CMYK"))
            files[f"b/webp {i}.jpg"] = saved("WEBP", image, lossless=True)
    files["a/broken.jpg"] = files["a/00.jpg"][:-100]
    for name, data in files.items():
        (tmp_path / "wild" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "wild" / name).write_bytes(data)
    return tmp_path / "wild"


@pytest.fixture
def decoded(monkeypatch):
    """(files, free bytes of the GPU after it) of each call of DALI's decoder."""
    seen, decode_into = [], DaliGpuDecoder.decode_into

    def watched(self, files, out):
        outcomes = decode_into(self, files, out)
        seen.append((len(files), torch.cuda.mem_get_info()[0]))
        return outcomes

    monkeypatch.setattr(DaliGpuDecoder, "decode_into", watched)
    return seen


def count(calls) -> int:
    return sum(files for files, _ in calls)


def test_dali_decodes_and_resizes_a_plain_folder(wild, decoded):
    tolerance = available("dali_gpu").tolerance.then(resize_tolerance(SIZE))
    data = GPUOnlyDataset(wild, dtype=torch.float16, **OPTIONS)
    assert data.cache.name == "dali_gpu-48x40.npy"
    assert count(decoded) == len(data) + 1 == 41
    assert CacheInfo.read(data.cache).tolerance == tolerance
    assert [one["path"] for one in data.quarantined] == ["a/broken.jpg"]
    names = data.manifest.table["path"].tolist()
    for i, image in zip(data.ids, data.images.cpu(), strict=True):
        (whole,) = PillowDecoder().decode([(wild / names[i]).read_bytes()]).images
        right, found = resized(whole, SIZE), image.permute(1, 2, 0).numpy()
        assert tolerance.exceeded(found, right) is None, names[i]
        if "cmyk" in names[i] or "webp" in names[i]:
            assert np.array_equal(found, right)
    images, labels = data[:]
    assert images.device == labels.device == data.device
    normalise = Normalise(image_folder.MEAN, image_folder.STD, 0, {}).normalise
    assert torch.equal(images.cpu(), normalise(data.images.permute(0, 2, 3, 1)).half().cpu())


def test_decoding_stops_at_max_samples(wild, decoded):
    available("dali_gpu")
    (wild / "a/broken.jpg").unlink()
    data = GPUOnlyDataset(wild, max_samples=7, **OPTIONS)
    assert len(data) == count(decoded) == 7
    again = GPUOnlyDataset(wild, max_samples=7, **OPTIONS)
    assert count(decoded) == 7
    assert torch.equal(again.images, data.images)


def test_the_memory_is_estimated_with_what_dali_takes(wild, decoded, monkeypatch):
    available("dali_gpu")
    monkeypatch.setattr(gpu_only_dataset, "free_bytes", lambda device: DECODING_BYTES)
    with pytest.raises(GpufeedError, match=r"1\.00 GiB to decode"):
        GPUOnlyDataset(wild, **OPTIONS)
    assert decoded == []
    assert len(GPUOnlyDataset(wild, use_gpu_decode=False, **OPTIONS)) == 40


@pytest.mark.alone  # other processes take memory of the same GPU
def test_dali_takes_no_more_memory_than_is_estimated(tmp_path, decoded):
    """Of 1,024 photos of 400 x 500 pixels, more than a call takes."""
    available("dali_gpu")
    data = saved("JPEG", photo(400, 500), quality=92)
    (tmp_path / "photos").mkdir()
    for i in range(1024):
        (tmp_path / f"photos/{i}.jpg").write_bytes(data)
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    GPUOnlyDataset(tmp_path / "photos", image_size=(224, 224), workers=2)
    assert len(decoded) > 1
    assert free - min(left for _, left in decoded) < DECODING_BYTES


def test_a_dataloader_without_workers_takes_it_and_one_with_workers_is_told(manifest):
    data = GPUOnlyDataset(manifest, use_gpu_decode=False, workers=2, dtype=torch.bfloat16)
    found = []
    for images, labels in DataLoader(data, batch_size=16, shuffle=True):
        assert images.device == labels.device == data.device
        assert images.dtype == torch.bfloat16
        found += labels.tolist()
    assert sorted(found) == sorted(data.labels.tolist())
    with pytest.raises(RuntimeError, match="num_workers=0"):
        next(iter(DataLoader(data, batch_size=16, num_workers=1)))
