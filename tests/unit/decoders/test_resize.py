"""Datasets of several sizes, brought to the one that their source asks for."""

from dataclasses import replace

import numpy as np
import pytest
from hostile_fixtures import available, photo, saved
from image_fixtures import request, write_files
from PIL import Image

from gpufeed.core.cell_matrix import content
from gpufeed.core.config_sources import check_of
from gpufeed.core.errors import GpufeedError
from gpufeed.core.registry import DECODERS
from gpufeed.datasets.manifest import Manifest
from gpufeed.decoders.fallback import resize_tolerance
from gpufeed.decoders.pillow import resized
from gpufeed.loaders.resident import ResidentLoader
from gpufeed.loaders.samples import Samples
from gpufeed.stores import cache_fill
from gpufeed.stores.cache_format import CacheInfo, open_cache
from gpufeed.stores.decoded_cache import build

SIZE = (24, 32)
SIDES = [(24, 32), (48, 64), (31, 17), (100, 20), (24, 32), (8, 9)]


@pytest.fixture
def manifest(tmp_path):
    """Six JPEGs of five sizes; number 1 is grayscale."""
    images = [photo(*sides) // 2 + np.uint8(20 * i) for i, sides in enumerate(SIDES)]
    images[1] = images[1][..., 0]
    files = [saved("JPEG", image, quality=92) for image in images]
    made = write_files(tmp_path / "files", files, "jpg", SIZE)
    made.table[["height", "width"]] = SIDES
    made.table.loc[1, "channels"] = 1
    made.info = replace(made.info, resize=SIZE)
    return made


def expected(manifest) -> np.ndarray:
    """By Pillow alone, uint8 (6, 24, 32, 3)."""
    images = (Image.open(path).convert("RGB") for path in manifest.paths())
    return np.stack([image.resize(SIZE[::-1], Image.Resampling.BILINEAR) for image in images])


@pytest.mark.parametrize("name", DECODERS)
def test_every_decoder_builds_the_cache(name, manifest, tmp_path, monkeypatch):
    monkeypatch.setattr(cache_fill, "CHUNK", 4)
    monkeypatch.setattr(cache_fill, "BATCH", 5)
    decoder = available(name)
    build(manifest, name, tmp_path / f"{name}.npy", workers=2)
    found = np.array(open_cache(tmp_path / f"{name}.npy", manifest))
    pairs = zip(found, expected(manifest), strict=True)
    # resizing rounds once more, and smooths what differs
    tolerance = replace(decoder.tolerance, max=decoder.tolerance.max + 2, mean=decoder.tolerance.mean + 0.5)
    wrong = [tolerance.exceeded(image, right) for image, right in pairs]
    assert wrong == [None] * len(SIDES)
    allowed = decoder.tolerance.then(resize_tolerance(SIZE)) if name.startswith("dali") else decoder.tolerance
    assert CacheInfo.read(tmp_path / f"{name}.npy").tolerance == allowed


def test_loaders_from_files_and_from_the_cache_agree(manifest, tmp_path):
    samples, right = Samples(request(manifest, None)), expected(manifest)
    assert all(np.array_equal(samples.read(i), right[i]) for i in range(len(SIDES)))
    build(manifest, "pillow", tmp_path / "pillow.npy")
    with ResidentLoader(request(manifest, tmp_path / "pillow.npy")) as loader:
        for batch in loader:
            assert np.array_equal(batch.images.numpy(), right[batch.ids.numpy()])


def test_an_image_of_that_size_is_left_alone():
    image = photo(24, 32)
    assert resized(image, SIZE) is image


def test_without_it_several_sizes_are_an_error_that_names_it(manifest, tmp_path):
    plain = Manifest(manifest.root, replace(manifest.info, resize=None), manifest.table)
    with pytest.raises(GpufeedError, match="5 image sizes in files") as error:
        build(plain, "pillow", tmp_path / "pillow.npy")
    assert "resize: [height, width]" in error.value.remedy


def test_calls_are_small_by_the_files_sizes(manifest, monkeypatch, tmp_path):
    asked, calls = [], cache_fill.calls
    monkeypatch.setattr(cache_fill, "calls", lambda pixels: asked.extend(pixels) or calls(pixels))
    build(manifest, "dali_cpu", tmp_path / "dali_cpu.npy")
    assert asked == (manifest.table["height"] * manifest.table["width"]).tolist()


def test_it_is_part_of_what_a_cell_measures_and_nothing_changes_without_it():
    rows = {"plain": {"layout": "synthetic"}, "resized": {"layout": "synthetic", "resize": [8, 9]}}
    plain, resized = (content({"sources": rows, "use_instead": {}}, name) for name in rows)
    assert plain == {"layout": "synthetic", "files": {}, "options": {}}
    assert resized == {**plain, "resize": [8, 9]}


def test_no_mosaic_of_several_sizes():
    sources = {
        "mixed": {"layout": "tiny_imagenet", "resize": [64, 64]},
        "plain": {"layout": "tiny_imagenet"},
        "tiles": {"layout": "mosaic", "options": {"of": "mixed"}},
    }
    with pytest.raises(GpufeedError, match="one of: plain"):
        check_of({"sources": sources, "use_instead": {}}, "tiles")
