"""A cache built from strips: every row the image of its sample."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_strips_set import dataset

from gpufeed.core.errors import GpufeedError
from gpufeed.decoders.base import Tolerance
from gpufeed.decoders.pillow import rgb
from gpufeed.loaders.pixel_tolerance import pixel_source
from gpufeed.stores import strips_to_cache
from gpufeed.stores.cache_format import CacheInfo, open_cache
from gpufeed.stores.strip_backends import BACKENDS
from gpufeed.stores.strip_backends.cpu import CpuStrips
from gpufeed.stores.strips_build import build
from gpufeed.stores.strips_to_cache import build_from_strips

CPU = torch.device("cpu")
KINDS = ["colour"] * 11 + ["grayscale"] * 4 + ["png", "progressive"] + ["444"] * 3


@pytest.mark.parametrize("call_bytes", [1, 2**28])
def test_rows_are_the_samples(tmp_path, monkeypatch, call_bytes):
    monkeypatch.setattr(strips_to_cache, "CALL_BYTES", call_bytes)
    manifest = dataset(tmp_path, KINDS, ("train", "test"))
    build(manifest, tmp_path / "strips.bin", images_per_strip=4)
    build_from_strips(manifest, tmp_path / "strips.bin", tmp_path / "cache/strips.npy", CPU, threads=2)
    images = open_cache(tmp_path / "cache/strips.npy", manifest, verify=True)
    expected = np.stack([rgb(path.read_bytes()) for path in manifest.paths()])
    assert np.array_equal(images[:, 1:-1], expected[:, 1:-1])
    assert CacheInfo.read(tmp_path / "cache/strips.npy").decoder == "strips"
    assert CacheInfo.read(tmp_path / "cache/strips.npy").decoder_version.startswith("strips by simplejpeg")


def test_strips_of_one_split_do_not_make_a_whole_cache(tmp_path):
    manifest = dataset(tmp_path, KINDS, ("train", "test"))
    build(manifest, tmp_path / "strips.bin", splits=["train"])
    with pytest.raises(GpufeedError):
        build_from_strips(manifest, tmp_path / "strips.bin", tmp_path / "cache/strips.npy", CPU)
    assert not (tmp_path / "cache/strips.npy").exists()


def test_strips_of_images_that_are_to_be_resized_are_refused(tmp_path):
    manifest = dataset(tmp_path, KINDS, ("train", "test"))
    manifest.info = replace(manifest.info, resize=(24, 24))
    build(manifest, tmp_path / "strips.bin")
    with pytest.raises(GpufeedError, match=r"resized to 24 x 24") as error:
        build_from_strips(manifest, tmp_path / "strips.bin", tmp_path / "cache/strips.npy", CPU)
    assert "cache_decoder" in error.value.remedy
    assert not (tmp_path / "cache/strips.npy").exists()


class Coarse(CpuStrips):
    """A backend whose images are further from Pillow's than those of the decoder `strips`."""

    tolerance = Tolerance(160, 12.0)


def test_the_gate_holds_the_cache_to_the_tolerance_of_the_backend_that_built_it(tmp_path, monkeypatch):
    manifest = dataset(tmp_path, KINDS, ("train", "test"))
    build(manifest, tmp_path / "strips.bin", images_per_strip=4)
    monkeypatch.setitem(BACKENDS, "cpu", "test_strips_cache:Coarse")
    build_from_strips(manifest, tmp_path / "strips.bin", tmp_path / "cache/strips.npy", CPU)
    source = pixel_source("resident", None, tmp_path / "cache/strips.npy")
    assert (source.decoder, source.tolerance) == ("strips", Tolerance(160, 12.0))
