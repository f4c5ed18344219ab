"""The cache of datasets of several sizes: each image once, its short side brought to one length."""

import numpy as np
import pytest
import torch
from image_fixtures import request

from gpufeed.augment.random_resized_crop import RandomResizedCrop
from gpufeed.core.errors import GpufeedError
from gpufeed.core.registry import load, store_file
from gpufeed.datasets.image_folder import reorganise
from gpufeed.decoders.pillow import resized, rgb
from gpufeed.loaders import host_cache, scaled_crops
from gpufeed.loaders.scaled_crops import HostCacheCrops
from gpufeed.stores.cache_format import CacheInfo
from gpufeed.stores.decoded_cache import build_named
from gpufeed.stores.scaled_cache import ScaledImages, open_scaled

SHORT = 100


@pytest.fixture(scope="module")
def manifest(photographs, tmp_path_factory):
    return reorganise([photographs], tmp_path_factory.mktemp("photographs"), "photographs", {})


@pytest.fixture(scope="module")
def path(manifest):
    path = manifest.root / f"cache/short{SHORT}.npy"
    build_named(manifest, path, workers=2)
    return path


def test_each_image_lies_at_its_place_as_pillow_resizes_it(manifest, path):
    pixels, images = open_scaled(path, manifest)
    assert CacheInfo.read(path).decoder == "simplejpeg"
    shrunk = kept = 0
    for sample_id, file in enumerate(manifest.paths()):
        place, size = images.place(sample_id)
        whole = rgb(file.read_bytes())
        expected = resized(whole, size)
        assert np.array_equal(pixels[place].reshape(*size, 3), expected)
        if min(whole.shape[:2]) > SHORT:
            assert min(size) == SHORT
            assert abs(size[0] / size[1] / (whole.shape[0] / whole.shape[1]) - 1) < 0.02
            shrunk += 1
        else:  # never enlarged
            assert size == whole.shape[:2]
            kept += 1
    assert shrunk
    assert kept
    assert place.stop == len(pixels) == images.total


def test_a_cache_of_other_images_is_refused(manifest, path, tmp_path):
    renamed = path.with_name("short90.npy")
    renamed.write_bytes(path.read_bytes())
    renamed.with_suffix(".json").write_bytes(path.with_suffix(".json").read_bytes())
    try:
        with pytest.raises(GpufeedError, match="bytes in"):
            open_scaled(renamed, manifest)
    finally:
        renamed.unlink()
        renamed.with_suffix(".json").unlink()


def test_a_broken_file_is_named(photographs, tmp_path):
    broken = reorganise([photographs], tmp_path, "photographs", {})
    file = broken.paths()[7]
    file.unlink()
    file.write_bytes(b"no image")
    with pytest.raises(GpufeedError, match=file.name):
        build_named(broken, tmp_path / "cache/short64.npy")
    assert not (tmp_path / "cache/short64.npy").exists()


def test_the_planner_names_the_file_by_the_recipe():
    assert store_file("resident", "dali_gpu", {"short_side": 256}) == "cache/short256.npy"
    assert store_file("resident", "dali_gpu", None) == "cache/dali_gpu.npy"
    assert store_file("webdataset", "dali_gpu", {"short_side": 256}) == "shards/shards.json"
    assert store_file("dataloader_sync", "dali_gpu", {"short_side": 256}) is None


@pytest.mark.parametrize("loader", ["resident", "host_cache"])
@pytest.mark.parametrize("training", [True, False])
def test_crops_out_of_the_cache_are_the_windows_of_the_scaled_images(manifest, path, loader, training):
    recipe = RandomResizedCrop(32, short_side=SHORT, seed=3, training=training)
    expected = expected_samples(manifest, path, recipe)
    with load("loader", loader)(request(manifest, path, recipe=recipe)) as opened:
        for _ in range(2):
            epoch = opened.epoch
            for batch in opened:
                for image, sample_id in zip(batch.images, batch.ids.tolist(), strict=True):
                    assert np.array_equal(image.numpy(), expected(sample_id, epoch))


@pytest.mark.parametrize("chunk", [1, 50_000])  # less than an image, and of several
def test_the_split_is_copied_in_chunks(manifest, path, monkeypatch, chunk):
    monkeypatch.setattr(scaled_crops, "CHUNK_BYTES", chunk)
    crops = HostCacheCrops(request(manifest, path, recipe=RandomResizedCrop(32, short_side=SHORT)))
    pixels, images = open_scaled(path, manifest)
    expected = [pixels[images.place(sample_id)[0]] for sample_id in manifest.ids("train").tolist()]
    crops.load()
    assert np.array_equal(crops.pixels, np.concatenate(expected))
    assert crops.starts.tolist() == np.cumsum([0, *map(len, expected)])[:-1].tolist()


def expected_samples(manifest, path, recipe):
    pixels, images = open_scaled(path, manifest)
    sizes = manifest.sizes().tolist()

    def sample(sample_id: int, epoch: int) -> np.ndarray:
        place, size = images.place(sample_id)
        window = recipe.window(sample_id, epoch, *sizes[sample_id]).scaled(sizes[sample_id], size)
        return recipe.cut(pixels[place].reshape(*size, 3), window)

    return sample


def test_a_cache_that_does_not_fit_into_memory_is_read_from_its_file(manifest, path, monkeypatch):
    recipe = RandomResizedCrop(32, short_side=SHORT, seed=3)
    batches = [batch.clone() for batch in opened_batches(manifest, path, recipe)]
    monkeypatch.setattr(host_cache, "free_host_bytes", lambda: 10)
    for one, other in zip(batches, opened_batches(manifest, path, recipe), strict=True):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.ids, other.ids)


def opened_batches(manifest, path, recipe):
    with load("loader", "host_cache")(request(manifest, path, recipe=recipe)) as loader:
        yield from loader


@pytest.mark.parametrize("short", [1, 64, 5000])
def test_places_follow_one_another(manifest, short):
    images = ScaledImages.of(manifest, short)
    end = 0
    for sample_id in range(len(manifest)):
        place, (height, width) = images.place(sample_id)
        assert place.start == end
        assert height >= 1 <= width
        end = place.stop
    assert end == images.total
