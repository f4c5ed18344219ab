"""Windows of random_resized_crop by DALI: given by us in our order, or its own behind its own reader."""

import io
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from gate_fixtures import judged, task_for
from hostile_fixtures import available, saved
from image_fixtures import ids_of, write_files
from image_fixtures import request as wanted
from photo_fixtures import photos
from photograph_fixtures import encoded, waves
from PIL import Image

from gpufeed.augment.random_resized_crop import RandomResizedCrop
from gpufeed.benchmarks.equivalence import window_check
from gpufeed.benchmarks.equivalence.window_check import coordinate_jpeg, read_windows
from gpufeed.core.cells import Cell, impossible
from gpufeed.core.equivalence_verdict import loader_settings, variant
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.registry import load
from gpufeed.decoders.dali_gpu import DaliGpuDecoder
from gpufeed.decoders.pillow import rgb

SIZES = ((60, 90), (200, 64), (128, 128), (33, 150), (301, 201), (90, 60), (70, 71), (64, 300))
RECIPE = RandomResizedCrop(64, short_side=72, seed=3)


def dataset(root, files: list[bytes]):
    """A manifest of files with the sizes in their headers."""
    manifest = write_files(root, files, "jpg", (1, 1))
    sizes = [Image.open(io.BytesIO(data)).size[::-1] for data in files]
    manifest.table[["height", "width"]] = sizes
    return manifest


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """JPEGs of several sizes, each of its own colours."""
    random = np.random.default_rng(0)
    files = [encoded(waves(*size, random), "4:4:4", 1) for size in SIZES * 3]
    return dataset(tmp_path_factory.mktemp("mixed") / "files", files)


def opened(manifest, loader: str = "dali_cpu", recipe=RECIPE, **changes):
    available("dali_cpu")
    return load("loader", loader)(wanted(manifest, None, recipe=recipe, **changes))


def check(loader, recipe=RECIPE) -> list[int]:
    """Holds the rest of an epoch against Pillow; returns the ids. No value inside differs by more than 1."""
    manifest, epoch, found = loader.request.manifest, loader.epoch, []
    for batch in loader:
        assert batch.images.shape[1:] == (recipe.size, recipe.size, 3)
        for i, sample in zip(batch.ids.tolist(), batch.images.cpu().numpy(), strict=True):
            image = rgb(manifest.paths()[i].read_bytes())
            expected = recipe.cut(image, recipe.window(i, epoch, *image.shape[:2]))
            difference = np.abs(sample.astype(int) - expected)
            assert difference[1:-1, 1:-1].max() <= 1  # Pillow rounds between rows and columns
            assert difference.max() <= loader.resampling.max
            found.append(i)
    return found


@pytest.mark.parametrize("recipe", [RECIPE, RECIPE.for_evaluation()], ids=["training", "evaluation"])
def test_windows_are_ours_and_pixels_pillows(mixed, recipe):
    with opened(mixed, recipe=recipe) as loader:
        for _ in range(2):
            order = loader.order().tolist()
            assert check(loader, recipe) == order
        assert loader.reads
        assert loader.decode_counts.fell_back == {}


def test_the_same_windows_come_after_a_resumption(mixed):
    with opened(mixed, batch_size=7) as whole, opened(mixed, batch_size=7) as fresh:
        batches = [batch.clone() for _ in range(2) for batch in whole]
        fresh.load_state_dict({"epoch": 1, "next_batch": 2, "seed": 3})
        for again, before in zip(fresh, batches[6:], strict=True):
            assert np.array_equal(again.images, before.images)


def test_what_dali_does_not_take_is_cut_by_pillow(tmp_path):
    strange = [*photos(12), encoded(waves(120, 50, np.random.default_rng(1)), "4:4:4", 1)]
    with opened(
        dataset(tmp_path / "files", [*strange, saved("GIF", waves(40, 50, np.random.default_rng(2)))])
    ) as loader:
        assert not loader.reads
        for _ in range(2):
            assert sorted(check(loader)) == list(range(14))
        assert loader.decode_counts.fell_back == {"pillow": 4}  # CMYK and GIF
        assert loader.decode_counts.by["dali_cpu"] == 24


def test_a_file_that_nobody_can_decode_is_named(mixed, tmp_path):
    files = [path.read_bytes() for path in mixed.paths()]
    manifest = dataset(tmp_path / "files", files)
    manifest.paths()[5].write_bytes(files[5][:200])
    with opened(manifest) as loader, pytest.raises(GpufeedError, match=str(manifest.paths()[5])):
        list(loader)


@pytest.mark.parametrize("late", [False, True])
def test_a_file_of_another_size_is_named(tmp_path, late, caplog):
    random = np.random.default_rng(0)
    manifest = dataset(tmp_path / "files", [encoded(waves(*size, random), "gray", 1) for size in SIZES * 8])
    path, other = manifest.paths()[60], encoded(waves(65, 301, random), "gray", 1)
    if not late:
        path.write_bytes(other)
    with opened(manifest, batch_size=8, shuffle=False) as loader:
        assert loader.reads == late
        path.write_bytes(other)  # larger than before: the window fits into it
        with pytest.raises(
            GpufeedError, match=r"60\.jpg: decoded to \(65, 301, 3\), the manifest says \(301, 201, 3\)"
        ):
            list(loader)
    assert ("found images of other sizes" in caplog.text) == late


READER = "dali_cpu_reader"


def test_dalis_own_reader_passes_the_equivalence_check(mixed, monkeypatch):
    available("dali_cpu")
    monkeypatch.setattr(window_check, "COUNT", 1000)
    mixed.write()
    options = {name: getattr(RECIPE, name) for name in ("size", "scale", "ratio", "short_side")}
    one = judged(replace(task_for(mixed, None, READER, batch_size=7, recipe=options), reference=None))
    assert (one.status, one.sentence, one.compared) == ("passed", None, 3 * len(mixed))
    assert one.loading["fell_back"] == {}


@pytest.mark.parametrize("epochs", [1, 200])
def test_dalis_own_reader_goes_on_behind_its_list(mixed, monkeypatch, epochs):
    available("dali_cpu")
    from gpufeed.loaders import dali_own_reader

    monkeypatch.setattr(dali_own_reader, "EPOCHS", epochs)
    pipelines = []
    built = dali_own_reader.OwnReading._build
    monkeypatch.setattr(dali_own_reader.OwnReading, "_build", lambda self: pipelines.append(1) or built(self))
    with opened(mixed, READER, batch_size=7) as loader:
        for _ in range(3):
            order = loader.order().tolist()
            assert ids_of(loader) == order
        loader.load_state_dict({"epoch": 1, "next_batch": 2, "seed": 3})
        order = loader.order()[14:].tolist()
        assert ids_of(loader) == order
    assert len(pipelines) == {1: 4, 200: 2}[epochs]


def test_dalis_own_windows_are_other_ones_in_each_epoch(tmp_path):
    files = [coordinate_jpeg(*size) for size in ((300, 400), (256, 300))] * 50
    manifest = dataset(tmp_path / "files", files)
    with opened(manifest, READER, batch_size=32, shuffle=False) as loader:
        epochs = [np.concatenate([batch.images.numpy() for batch in loader]) for _ in range(2)]
    first, second = (read_windows(crops) for crops in epochs)
    assert np.abs(first.top - second.top).mean() > 0.05
    for found in (first, second):
        assert 0.3 < found.flip.mean() < 0.7
        assert (found.height * found.width).min() >= 0.08 - 0.01
        assert (found.height * found.width).max() <= 1.02
        assert max(abs(found.top.min()), abs(found.left.min())) < 0.02
        assert (found.top + found.height).max() <= 1.02


def test_dalis_own_reader_leaves_no_file_to_others(tmp_path):
    loader = opened(dataset(tmp_path / "files", photos(12)), READER)
    with pytest.raises(Skip, match=r"leaves no file to another decoder, and dali_cpu does not take .*7\.jpg"):
        loader.open()


def test_room_is_made_as_in_nvidias_example_but_not_beyond_it():
    decoder = DaliGpuDecoder.__new__(DaliGpuDecoder)  # without a GPU
    decoder.pipeline = SimpleNamespace(options={})
    nvidias, dalis_own = (211_025_920, 140_544_512), (16_777_216, 8_388_608)
    cases = {
        (6430, 5980): (*nvidias, 5980, 6430),
        (60_000, 60_000): (*nvidias, 5980, 6430),
        (375, 500): (*dalis_own, 500, 375),
        (3215, 5980): (105_512_960, 70_272_256, 5980, 3215),
    }
    for sides, expected in cases.items():
        decoder.make_room(*sides)
        assert tuple(decoder.pipeline.options.values()) == expected


def test_the_share_of_the_engines_is_an_axis_of_its_loaders():
    cell = Cell("here", "photographs", "dali_gpu", hw_decoder_load=0.0)
    usual = replace(cell, hw_decoder_load=None)
    assert impossible(cell) is None
    assert "hw_decoder_load must be null" in impossible(replace(cell, loader="dali_cpu"))
    assert "hw_decoder_load" not in usual.identity()
    assert len({cell.id, usual.id, replace(cell, hw_decoder_load=0.9).id}) == 3
    assert variant(loader_settings(cell)) == variant(loader_settings(usual)) + "-hw0"
