"""Samples of a strip set in batches: every sample once, with the pixels of its file but for the seams."""

import numpy as np
import pytest
import torch
from test_strips_set import dataset

from gpufeed.core.errors import GpufeedError
from gpufeed.decoders.pillow import rgb
from gpufeed.stores.strip_backends import BACKENDS, open_backend
from gpufeed.stores.strips_build import build
from gpufeed.stores.strips_reader import StripReader

CPU = torch.device("cpu")
KINDS = ["colour"] * 9 + ["grayscale"] * 5 + ["png", "progressive"] + ["444"] * 4


@pytest.fixture
def manifest(tmp_path):
    return dataset(tmp_path, KINDS, ("train", "test"))


@pytest.fixture
def reader(manifest, tmp_path):
    build(manifest, tmp_path / "strips.bin", images_per_strip=3)
    reader = StripReader(manifest, tmp_path / "strips.bin", CPU, threads=2)
    yield reader
    reader.close()


def file_pixels(manifest, ids) -> np.ndarray:
    return np.stack([rgb(manifest.paths()[id].read_bytes()) for id in ids])


@pytest.mark.parametrize("split", ["train", "test"])
def test_units_hold_each_sample_once(reader, manifest, split):
    ids = np.concatenate([unit.ids for unit in reader.units(split)])
    assert sorted(ids.tolist()) == manifest.ids(split).tolist()


@pytest.mark.parametrize("units_a_time", [1, 3, 100])
def test_pixels_are_those_of_the_files_but_for_the_seams(reader, manifest, units_a_time):
    seen = []
    for ids, images in reader.batches("train", units_a_time):
        assert images.dtype == torch.uint8
        assert images.is_contiguous()
        expected = file_pixels(manifest, ids)
        assert np.array_equal(images.numpy()[:, 1:-1], expected[:, 1:-1])
        for image, right in zip(images.numpy(), expected, strict=True):
            assert reader.backend.tolerance.exceeded(image, right) is None
        seen += ids.tolist()
    assert sorted(seen) == manifest.ids("train").tolist()


def test_nothing_to_read(reader):
    ids, images = reader.read([])
    assert (ids.shape, images.shape) == ((0,), (0, 32, 32, 3))


def test_a_set_without_strips(tmp_path):
    manifest = dataset(tmp_path, ["png", "progressive", "colour"])
    build(manifest, tmp_path / "strips.bin")
    reader = StripReader(manifest, tmp_path / "strips.bin", CPU, threads=1)
    ids, images = reader.read(reader.units("train"))
    assert sorted(ids.tolist()) == [0, 1, 2]
    assert np.array_equal(images.numpy(), file_pixels(manifest, ids))
    reader.close()


def test_what_the_backend_refuses_is_decoded_all_the_same(reader, manifest):
    whole = reader.backend.decode_into
    places = []

    def refuses_the_second(encoded, strips, out):
        whole(encoded, strips, out)
        rows = slice(len(strips[0].ids), len(strips[0].ids) + len(strips[1].ids))
        out[rows] = 0
        places.append(1)
        return [1]

    reader.backend.decode_into = refuses_the_second
    ids, images = reader.read(reader.units("train"))
    assert places == [1]
    assert np.array_equal(images.numpy()[:, 1:-1], file_pixels(manifest, ids)[:, 1:-1])


def test_a_strip_that_is_damaged_later_is_an_error(reader, tmp_path):
    strip = reader.units("train")[0].strip
    damage(tmp_path / "strips.bin", strip)  # the reader has the file mapped
    with pytest.raises(GpufeedError, match=f"strip at byte {strip.offset} is damaged"):
        reader.read(reader.units("train"))


def damage(path, strip) -> None:
    with path.open("r+b") as file:
        file.seek(strip.offset + strip.length - 40)
        file.write(bytes(40))


def test_a_left_over_file_that_went_away_is_an_error(reader, manifest):
    (left,) = [unit for unit in reader.units("train") if unit.strip is None]
    manifest.paths()[left.ids[0]].unlink()
    with pytest.raises(GpufeedError, match="No such file"):
        reader.read([left])


def test_backends_by_name():
    assert open_backend(CPU, 1).name == "cpu"
    with pytest.raises(GpufeedError, match="one of: " + ", ".join(sorted(BACKENDS))):
        open_backend(CPU, 1, "gpu")
