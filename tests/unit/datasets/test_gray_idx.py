"""Another dataset's images through idx files: the right pixels, labels and looks, and what is refused."""

import numpy as np
import pytest
from data_fixtures import files_below
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from test_config import broken

from gpufeed.core.cell_matrix import source_options
from gpufeed.core.config import planned
from gpufeed.core.config_sources import IDX_FILES
from gpufeed.core.errors import GpufeedError
from gpufeed.datasets import fashion_mnist
from gpufeed.datasets.gray_idx import gray, reorganise
from gpufeed.datasets.idx import measured, write_idx
from gpufeed.datasets.manifest import Manifest
from gpufeed.datasets.synthetic import reorganise as synthetic

OPTIONS = {"of": "tiny", "size": 12}
GRAY = ["sources", "cifar10_gray_28"]


@pytest.fixture
def given_images(tmp_path):
    """30 gratings of 20 x 16 pixels in 3 classes, some gray, 9 of them held out."""
    options = {"count": 30, "size": [20, 16], "classes": 3, "grayscale_share": 0.2, "evaluation_share": 0.3}
    return synthetic([], tmp_path / "tiny", "tiny", options)


def made(of: Manifest, out, **changes) -> Manifest:
    return reorganise([of.root / "manifest.parquet"], out, "gray", {**OPTIONS, **changes})


def test_every_image_is_there_in_gray_with_its_label_and_split(given_images, tmp_path):
    manifest = made(given_images, tmp_path / "out")
    assert manifest.table["split"].tolist() == given_images.table["split"].tolist()
    assert manifest.labels().tolist() == given_images.labels().tolist()
    assert manifest.info.classes == given_images.info.classes
    assert (manifest.image_size(), set(manifest.table["channels"])) == ((12, 12), {1})
    for ours, theirs in zip(manifest.paths(), given_images.paths(), strict=True):
        luma = np.asarray(Image.open(theirs).convert("L").resize((12, 12), Image.Resampling.BILINEAR))
        np.testing.assert_array_equal(np.asarray(Image.open(ours)), luma)


def test_sixteen_bits_of_gray_keep_their_range(tmp_path):
    values = np.arange(0, 65536, 1024, dtype=np.uint16).reshape(8, 8)
    Image.fromarray(values).save(tmp_path / "deep.png")
    np.testing.assert_array_equal(gray(tmp_path / "deep.png", 8), values >> 8)


def test_the_images_come_out_of_files_that_the_layout_of_fashion_mnist_reads(given_images, tmp_path):
    manifest = made(given_images, tmp_path / "out")
    names = [name for pair in IDX_FILES.values() for name in pair]
    files = [tmp_path / "out/idx" / name for name in names]
    assert sorted(path.name for path in (tmp_path / "out/idx").iterdir()) == sorted(names)
    read = fashion_mnist.reorganise(files, tmp_path / "again", "again", {})
    assert read.labels().tolist() == manifest.labels().tolist()
    for ours, theirs in zip(manifest.paths(), read.paths(), strict=True):
        assert ours.read_bytes() == theirs.read_bytes()
    source = manifest.info.source
    assert {name: source[name] for name in names} == read.info.source
    assert {key: source[key] for key in OPTIONS} == OPTIONS


def test_mean_and_std_are_those_of_the_gray_training_pixels(given_images, tmp_path):
    manifest = made(given_images, tmp_path / "out")
    ids = manifest.ids("train")
    pixels = np.stack([np.asarray(Image.open(manifest.paths()[i])) for i in ids]) / 255
    assert manifest.info.mean == pytest.approx((pixels.mean(),) * 3, abs=1e-6)
    assert manifest.info.std == pytest.approx((pixels.std(),) * 3, abs=1e-6)


@given(st.integers(1, 5000), st.integers(0, 2**32 - 1), st.integers(1, 256))
@settings(max_examples=30)
def test_looks_are_numpys_mean_and_std(count, seed, highest):
    images = np.random.default_rng(seed).integers(0, highest, (count, 2, 3), dtype=np.uint8)
    looks = measured(images)
    assert looks.mean == pytest.approx((images.mean() / 255,) * 3, abs=2e-6)
    assert looks.std == pytest.approx((images.std() / 255,) * 3, abs=2e-6)


def test_the_same_images_give_the_same_bytes(given_images, tmp_path):
    first, second = (files_below(made(given_images, tmp_path / name).root / "idx") for name in "ab")
    assert first == second
    assert len(first) == 4


def test_a_failed_write_leaves_neither_file_nor_partial(tmp_path):
    (tmp_path / "a.gz").mkdir()
    with pytest.raises(GpufeedError, match="no regular file"):
        write_idx(np.zeros(3, np.uint8), tmp_path / "a.gz")
    assert list(tmp_path.iterdir()) == [tmp_path / "a.gz"]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"size": 0}, "size: 0"),
        ({"size": 28.0}, "size: 28.0"),
        ({"size": True}, "size: True"),
        ({"sise": 28}, "key 'sise'"),
    ],
)
def test_impossible_options_are_refused(given_images, tmp_path, options, found):
    with pytest.raises(GpufeedError) as error:
        made(given_images, tmp_path / "out", **options)
    assert found in error.value.found
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_idx_files_is_refused(given_images, tmp_path):
    path = given_images.root / "manifest.parquet"
    with pytest.raises(GpufeedError, match="no 'size'"):
        reorganise([path], tmp_path / "out", "gray", {"of": "tiny"})
    with pytest.raises(GpufeedError, match="0 files for layout gray_idx: none"):
        reorganise([], tmp_path / "out", "gray", OPTIONS)
    given_images.info.classes.extend(f"more_{i}" for i in range(254))
    given_images.write()
    with pytest.raises(GpufeedError, match="257 classes in tiny"):
        made(given_images, tmp_path / "out")


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        ([*GRAY, "options", "of"], "cifar_10", "dataset 'cifar_10' in sources.cifar10_gray_28.options.of"),
        ([*GRAY, "options", "of"], "mosaic_32", "dataset 'mosaic_32' in sources.cifar10_gray_28"),
        ([*GRAY, "options", "of"], "synthetic_224", "dataset 'synthetic_224'"),  # it holds no image out
        (["use_instead"], {"cifar10": "cifar10_gray_28"}, "dataset 'cifar10_gray_28'"),
        ([*GRAY, "options", "size"], 0, "size: 0"),
        ([*GRAY, "options", "quality"], 90, "key 'quality'"),
        ([*GRAY, "options"], {"of": "cifar10"}, "no 'size'"),
        (GRAY, {"layout": "gray_idx"}, "no options in sources.cifar10_gray_28"),
        ([*GRAY, "files"], [{"name": "a.gz", "sha256": "0" * 64}], "files in sources.cifar10_gray_28"),
    ],
)
def test_a_wrong_source_stops_before_the_plan(path, value, found):
    with pytest.raises(GpufeedError) as error:
        planned(broken(path, value))
    assert found in error.value.found


def test_it_can_stand_in_for_fashion_mnist_and_takes_the_stand_in_of_its_own():
    config = broken(["use_instead"], {"fashion_mnist": "cifar10_gray_28", "cifar10": "cifar10_jpeg"})
    cells = planned(config).cells["vit_lite"].values()
    assert {cell.dataset for cell in cells} == {"cifar10_gray_28"}
    assert all(cell.source["tiles"]["layout"] == "cifar10_jpeg" for cell in cells)
    assert source_options(config, "cifar10_gray_28") == {"of": "cifar10_jpeg", "size": 28}
