"""The front that holds a split on the device; here on the CPU, which is what it falls back to."""

import logging
import re

import numpy as np
import pytest
import torch
from data_fixtures import REPOSITORY
from gpu_only_fixtures import dataset, expected, noted, put
from hostile_fixtures import photo, saved

import gpufeed
from gpufeed.core.errors import GpufeedError
from gpufeed.datasets.prepare import prepare
from gpufeed.loaders import gpu_only_dataset
from gpufeed.loaders.gpu_only_dataset import GPUOnlyDataset
from gpufeed.stores.cache_format import CacheInfo
from gpufeed.stores.decoded_cache import build

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


@pytest.fixture
def decoded(monkeypatch):
    return noted(monkeypatch)


@pytest.mark.parametrize("split", ["train", "test"])
def test_samples_are_those_of_the_split(manifest, split):
    data = dataset(manifest, split=split)
    assert data.ids.tolist() == manifest.ids(split).tolist()
    assert len(data) == len(manifest.ids(split))
    for place, sample_id in enumerate(data.ids):
        image, label = data[place]
        assert image.dtype == torch.uint8
        assert torch.equal(image, expected(sample_id))
        assert label.item() == manifest.labels()[sample_id]
    assert torch.equal(data[-1][0], expected(data.ids[-1]))
    with pytest.raises(IndexError):
        data[len(data)]
    assert data.classes == manifest.info.classes


def test_from_the_path_of_a_manifest(manifest):
    assert len(dataset(manifest.root / "manifest.parquet")) == 23


@pytest.mark.parametrize("batch_size", [1, 5, 23, 100])
def test_a_shuffled_epoch_has_every_sample_once(manifest, batch_size):
    data, seen = dataset(manifest), []
    for images, labels in data.batches(batch_size, seed=4):
        assert images.shape[1:] == (3, 8, 8)
        assert images.is_contiguous(memory_format=torch.channels_last)
        for image, label in zip(images, labels, strict=True):
            sample_id = int(image[0, 0, 0]) + 256 * int(image[1, 0, 0])
            assert torch.equal(image, expected(sample_id))
            assert label.item() == manifest.labels()[sample_id]
            seen.append(sample_id)
    assert sorted(seen) == data.ids.tolist()
    assert seen != sorted(seen)


def order(data, **options) -> list[int]:
    return [int(image[0, 0, 0]) for images, _ in data.batches(4, **options) for image in images]


def test_order_is_a_function_of_the_seed(manifest):
    data = dataset(manifest)
    assert order(data, seed=1) == order(data, seed=1) != order(data, seed=2)
    assert order(data, shuffle=False) == data.ids.tolist()


def test_max_samples_draws_the_same_ones(manifest):
    first, again = dataset(manifest, max_samples=7), dataset(manifest, max_samples=7)
    assert first.ids.tolist() == again.ids.tolist() == sorted(set(first.ids.tolist()))
    assert len(first) == 7
    assert set(first.ids) < set(manifest.ids("train"))
    assert first.ids.tolist() != manifest.ids("train")[:7].tolist()
    assert torch.equal(first[3][0], expected(first.ids[3]))
    assert len(dataset(manifest, max_samples=1000)) == 23


def test_the_cache_is_built_once_and_again_for_another_manifest(manifest):
    data = dataset(manifest)
    built = data.cache.stat().st_mtime_ns
    assert CacheInfo.read(data.cache).decoder == "simplejpeg"
    assert dataset(manifest, split="test").cache.stat().st_mtime_ns == built
    manifest.table.loc[data.ids[0], "label"] += 1
    changed = dataset(manifest)
    assert changed.cache.stat().st_mtime_ns > built
    assert changed[0][1] == data[0][1] + 1


@NO_GPU
def test_without_a_gpu_the_cpu_decodes_and_holds(manifest, caplog):
    caplog.set_level(logging.INFO, "gpufeed")
    data = GPUOnlyDataset(manifest, workers=1)
    assert data.device == torch.device("cpu")
    assert "finds no CUDA GPU here" in caplog.text
    assert "simplejpeg builds the cache instead" in caplog.text
    assert data.cache.name == "simplejpeg.npy"
    assert (CacheInfo.read(data.cache).decoder, CacheInfo.read(data.cache).asked_for) == (
        "simplejpeg",
        "dali_gpu",
    )
    assert torch.equal(data[5][0], expected(data.ids[5]))


@NO_GPU
def test_a_device_that_is_not_there_is_an_error(manifest):
    with pytest.raises(GpufeedError, match="finds no CUDA GPU"):
        dataset(manifest, device="cuda")


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"max_samples": 0}, "max_samples 0"),
        ({"max_samples": -3}, "max_samples -3"),
        ({"split": "val"}, "no samples in split 'val'"),
        ({"device": "xla"}, "device 'xla'"),
        ({"device": "gpu"}, "device 'gpu'"),
        ({"max_samples": 2.5}, "max_samples 2.5"),
        ({"image_size": 224}, "image_size 224"),
        ({"image_size": (0, 4)}, "image_size"),
        ({"dtype": torch.int64}, "dtype torch.int64"),
        ({"max_quarantined_share": 1}, "max_quarantined_share 1"),
        ({"source": "no/such/folder"}, "no no/such/folder"),
        ({"workers": 100_000}, "workers: 100000"),
        ({"workers": "2"}, "workers: '2'"),
    ],
)
def test_what_cannot_be_is_an_error(manifest, options, found):
    with pytest.raises(GpufeedError, match=found):
        dataset(**{"source": manifest, **options})
    assert not (manifest.root / "cache").exists()


def test_batches_of_nothing(manifest):
    with pytest.raises(GpufeedError, match="batch size 0"):
        next(dataset(manifest).batches(0))


def test_what_does_not_fit_is_said_before_anything_is_decoded(manifest, monkeypatch, decoded):
    monkeypatch.setattr(gpu_only_dataset, "free_bytes", lambda device: 1000)
    with pytest.raises(GpufeedError, match="GiB free on cpu") as raised:
        dataset(manifest)
    assert "max_samples=4" in raised.value.remedy  # 4 x (8 x 8 x 3 + 8) bytes of 900
    assert decoded == []
    assert len(dataset(manifest, max_samples=4)) == 4
    with pytest.raises(GpufeedError):
        dataset(manifest, max_samples=5)
    with pytest.raises(GpufeedError) as raised:
        dataset(manifest, image_size=(100, 100))
    assert "max_samples" not in raised.value.remedy
    assert len(decoded) == 4


def test_only_max_samples_images_are_decoded_and_once(manifest, decoded):
    some = dataset(manifest, max_samples=7)
    files = manifest.paths()
    assert sorted(decoded) == sorted(files[i].read_bytes() for i in some.ids)
    again = dataset(manifest, max_samples=7)
    assert again.cache == some.cache
    assert torch.equal(again.images, some.images)
    assert len(decoded) == 7
    other = dataset(manifest, max_samples=3, split="test")
    assert other.cache != some.cache
    assert torch.equal(other[1][0], expected(other.ids[1]))
    assert len(decoded) == 10


def test_a_cache_of_the_whole_set_is_reused_for_a_part(manifest, decoded):
    everything = dataset(manifest, image_size=(5, 6))
    assert everything.cache.name == "simplejpeg-5x6.npy"
    assert len(decoded) == 29
    some = dataset(manifest, max_samples=7, image_size=(5, 6))
    assert some.cache == everything.cache
    places = np.searchsorted(everything.ids, some.ids)
    assert torch.equal(some.images, everything.images[places])
    manifest.table.loc[0, "label"] += 1  # now it is of another manifest
    assert dataset(manifest, max_samples=7, image_size=(5, 6)).cache != everything.cache
    assert len(decoded) == 29 + 7


def test_a_part_of_another_size_or_of_other_files_is_another_cache(manifest):
    sizes = (None, (9, 8))
    names = {dataset(manifest, max_samples=n, image_size=size).cache.name for n in (5, 6) for size in sizes}
    assert len(names) == 4


def test_a_cache_that_cannot_be_written_says_what_to_name(manifest, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(GpufeedError) as raised:
        dataset(manifest, cache_folder=tmp_path / "file")
    assert "cache_folder=" in raised.value.remedy
    assert dataset(manifest, cache_folder=tmp_path / "there").cache == tmp_path / "there/simplejpeg.npy"


@NO_GPU
def test_a_cache_under_the_gpu_decoder_s_name_is_reused(manifest, decoded):
    """The workflow's job keeps the requested decoder's name for a cache, even if another decoder built it."""
    path = manifest.root / "cache/dali_gpu.npy"
    build(manifest, "pillow", path, asked_for="dali_gpu", because="There is none here.")
    data = GPUOnlyDataset(manifest, device="cpu", workers=1, max_samples=9)
    assert data.cache == path
    assert decoded == []
    assert torch.equal(data[2][0], expected(data.ids[2]))


def test_the_example_of_the_page(tmp_path, monkeypatch):
    page = (REPOSITORY / "docs/reference/gpu_only_dataset.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    images = {
        f"{name}/{i}.jpg": saved("JPEG", photo(40 + i, 50)) for name in ("cats", "dogs") for i in range(9)
    }
    put(tmp_path / "photos", images)
    monkeypatch.chdir(tmp_path)
    found: dict = {}
    exec(code, found)
    assert len(found["data"]) == 10
    assert found["images"].shape == (4, 3, 224, 224)
    assert found["images"].dtype == torch.float16
    assert found["seen"] == 10


def test_the_short_way_to_import_it():
    assert gpufeed.GPUOnlyDataset is GPUOnlyDataset
    assert not hasattr(gpufeed, "GPUOnlyDatasets")


def test_of_images_in_no_file_a_part_has_its_own_pixels(tmp_path):
    prepare("noise", [], tmp_path / "noise", "noise", {"count": 40, "size": 16, "classes": 4, "seed": 1})
    whole = dataset(tmp_path / "noise")
    some = dataset(tmp_path / "noise", max_samples=7, cache_folder=tmp_path / "elsewhere")
    assert some.ids.tolist() != list(range(7))
    assert torch.equal(some.images, whole.images[torch.from_numpy(some.ids)])
    assert torch.equal(some.labels, torch.from_numpy(some.ids) % 4)
