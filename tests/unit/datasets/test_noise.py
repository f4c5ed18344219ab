"""Images in no file: prepared without files, made by each loader, and the same in all of them."""

import numpy as np
import pytest
import torch
from config_fixtures import merged
from PIL import Image
from torchvision import transforms

from gpufeed.augment.cpu import CpuAugment
from gpufeed.core.config import planned
from gpufeed.core.config_sources import checked_options
from gpufeed.core.dataset_size import amount_of
from gpufeed.core.errors import GpufeedError
from gpufeed.core.registry import LOADERS, load
from gpufeed.datasets.manifest import Manifest
from gpufeed.datasets.prepare import prepare
from gpufeed.loaders.base import LoadRequest
from gpufeed.stores.cache_format import open_cache
from gpufeed.stores.decoded_cache import build
from gpufeed.training.runtime_context import input_files, page_cached_share

SMALL = {"count": 23, "size": 24, "classes": 10, "seed": 3}


def made(folder, form="folders", resize=None, **options):
    prepare("noise", [], folder, "noise", SMALL | options, resize=resize, form=form)
    return Manifest.read(folder / "manifest.parquet")


def request(manifest, loader, **more):
    workers = {"workers": 2, "prefetch_factor": 2} if LOADERS[loader].workers == "required" else {}
    return LoadRequest(manifest, "train", 8, torch.device("cpu"), **workers, **more)


def test_labels_go_round_and_no_image_file_is_written(tmp_path):
    manifest = made(tmp_path)
    assert manifest.labels().tolist() == [i % 10 for i in range(23)]
    assert manifest.image_size() == (24, 24)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["manifest.parquet"]
    assert (manifest.info.mean, manifest.info.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def test_pixels_are_random_bytes_of_seed_and_sample(tmp_path):
    manifest, other = made(tmp_path / "a"), made(tmp_path / "b", seed=4)
    first = manifest.pixels(0)
    assert (first.dtype, first.shape) == (np.uint8, (24, 24, 3))
    assert np.array_equal(first, manifest.pixels(0))
    assert not np.array_equal(first, manifest.pixels(1))
    assert not np.array_equal(first, other.pixels(0))
    every = np.stack([manifest.pixels(i) for i in range(23)])
    assert (every.min(), every.max()) == (0, 255)
    assert abs(every.mean() - 127.5) < 1.5


@pytest.mark.parametrize("form", ["folders", "packed"])
@pytest.mark.parametrize("loader", [name for name, entry in LOADERS.items() if entry.makes])
def test_loaders_give_the_pixels_that_a_cache_of_them_has(tmp_path, loader, form):
    manifest = made(tmp_path, form)
    asked = request(manifest, loader)
    assert build(manifest, "pillow", tmp_path / "cache.npy").count == 23
    pixels = open_cache(tmp_path / "cache.npy", manifest)
    seen = []
    with load("loader", loader)(asked) as opened:
        for batch in opened:
            seen += batch.ids.tolist()
            assert np.array_equal(batch.images.numpy(), pixels[batch.ids.numpy()])
            assert torch.equal(batch.labels, batch.ids % 10)
        assert opened.files() == []
    assert len(seen) == 23
    assert LOADERS[loader].ceiling or sorted(seen) == list(range(23))
    assert input_files(asked) == []
    assert page_cached_share([]) is None


def test_a_batch_is_what_the_notebooks_dataset_makes_of_the_same_bytes(tmp_path):
    manifest = made(tmp_path, resize=(16, 16))
    resize, to_tensor = transforms.Resize((16, 16)), transforms.ToTensor()
    normalise = transforms.Normalize(manifest.info.mean, manifest.info.std)
    usual = transforms.Compose([resize, to_tensor, normalise])
    options = {"crop_padding": 0, "flip_probability": 0.0, "pil": True}
    ours = CpuAugment(manifest.info.mean, manifest.info.std, 0, options)
    asked = request(manifest, "dataloader_sync", sample_transform=ours)
    with load("loader", "dataloader_sync")(asked) as opened:
        batch = next(iter(opened))
    for image, sample_id in zip(batch.images, batch.ids.tolist(), strict=True):
        raw = np.random.default_rng([3, sample_id]).integers(0, 256, (24, 24, 3), dtype=np.uint8)
        assert torch.equal(image, usual(Image.fromarray(raw)))


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"count": 1}, "count: 1"),
        ({"size": [8, 9]}, "size"),
        ({"seed": -1}, "seed: -1"),
        ({"cout": 3}, "cout"),
    ],
)
def test_impossible_options_are_named(options, found):
    with pytest.raises(GpufeedError, match=found.replace("[", r"\[")):
        checked_options("noise", options)


@pytest.fixture
def shipped():
    return merged("config.yaml")


@pytest.mark.parametrize(
    ("name", "part", "value"),
    [
        ("gpu_decoding", "sweep", {"datasets": ["noise_224", "tiny_imagenet", "mosaic_256"]}),
        ("tensor_cache", "builds", {"dataset": "noise_224"}),
    ],
)
def test_what_decodes_files_names_another_dataset(shipped, name, part, value):
    shipped["experiments"][name][part] |= value
    with pytest.raises(GpufeedError, match=rf"'noise_224' in experiments\.{name}\.{part}"):
        planned(shipped)


def test_no_mosaic_is_made_of_them(shipped):
    shipped["sources"]["mosaic_32"]["options"]["of"] = "noise_224"
    with pytest.raises(GpufeedError, match="noise_224"):
        planned(shipped)


def test_whole_epochs_on_them_have_nothing_to_be_judged_by(shipped):
    del shipped["experiments"]["notebook"]["common"]["steps"]
    with pytest.raises(GpufeedError, match="has no evaluation split"):
        planned(shipped)


def test_they_take_no_room_on_the_disk(shipped):
    shipped["sources"]["noise_224"]["options"]["count"] = 10_000_000
    found = amount_of(shipped, "noise_224")
    assert (found.images, found.files, found.kept) == (10_000_000, 0, 10_000_000 * 224**2)
