"""The cache as each decoder builds it."""

import json
import logging

import numpy as np
import pytest
from hostile_fixtures import available, decoder_or_sentence, photo, saved
from image_fixtures import by_pillow, write_files
from PIL import Image

from gpufeed.core import registry
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.registry import DECODERS, load
from gpufeed.decoders.base import Tolerance
from gpufeed.loaders.pixel_tolerance import pixel_source
from gpufeed.stores import cache_fill, decoded_cache
from gpufeed.stores.base import info_path
from gpufeed.stores.cache_format import CacheInfo, open_cache
from gpufeed.stores.decoded_cache import build, build_or_fall_back
from gpufeed.system import processes

GPU = [name for name in DECODERS if load("decoder", name).parallel == "device"]


@pytest.fixture
def manifest(tmp_path):
    """13 JPEGs of 24 x 32 pixels, each of its own shade; number 5 is a PNG, number 7 a CMYK file."""
    files = [saved("JPEG", photo(24, 32) // 2 + np.uint8(4 * i), quality=90) for i in range(13)]
    files[5] = saved("PNG", photo(24, 32))
    files[7] = saved("JPEG", Image.fromarray(photo(24, 32)).convert("CMYK"))
    return write_files(tmp_path / "files", files, "jpg", (24, 32))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", DECODERS)
def test_every_decoder_builds_it(name, workers, manifest, tmp_path, monkeypatch):
    monkeypatch.setattr(cache_fill, "CHUNK", 4)
    monkeypatch.setattr(cache_fill, "BATCH", 5)
    decoder = available(name)
    path = tmp_path / "cache" / f"{name}.npy"
    info = build(manifest, name, path, workers)
    pixels = open_cache(path, manifest, verify=True)
    assert info == CacheInfo.read(path)
    assert (info.decoder, info.decoder_version) == (name, decoder.version())
    assert info.tolerance == pixel_source("resident", None, path).tolerance == decoder.tolerance
    assert pixels.shape == (13, 24, 32, 3)
    wrong = [
        decoder.tolerance.exceeded(found, right)
        for found, right in zip(np.array(pixels), by_pillow(manifest), strict=True)
    ]
    assert wrong == [None] * 13


@pytest.mark.parametrize("name", DECODERS)
def test_processes_only_where_they_help(name, manifest, tmp_path, monkeypatch):
    decoder, started = available(name), []
    pool = processes.ProcessPoolExecutor
    monkeypatch.setattr(
        processes, "ProcessPoolExecutor", lambda count, **more: started.append(count) or pool(count, **more)
    )
    build(manifest, name, tmp_path / f"{name}.npy", workers=2)
    assert started == ([2] if decoder.parallel == "processes" else [])
    assert cache_fill.decoder(name, 1 if started else 2).threads == (1 if started else 2)
    assert cache_fill.decoder.cache_info().currsize == 1


@pytest.mark.parametrize("name", DECODERS)
def test_bad_files_are_listed_whoever_decodes(name, manifest, tmp_path):
    available(name)
    files = manifest.paths()
    files[2].write_bytes(b"")
    files[9].write_bytes(files[9].read_bytes()[:200])
    with pytest.raises(GpufeedError) as error:
        build(manifest, name, tmp_path / f"{name}.npy", workers=2)
    assert "2 of 13" in error.value.found
    assert "2.jpg" in error.value.found
    assert "9.jpg" in error.value.found
    assert not list(tmp_path.glob(f"{name}*"))


@pytest.mark.parametrize("name", GPU)
def test_decoder_that_the_node_lacks_is_an_error_and_harms_no_cache(name, manifest, tmp_path):
    if not isinstance(sentence := decoder_or_sentence(name), str):
        pytest.skip(f"this node can run {name}")
    path = tmp_path / f"{name}.npy"
    info_path(path).write_text("a finished cache's sidecar")
    with pytest.raises(GpufeedError) as error:
        build(manifest, name, path)
    assert error.value.found == sentence
    assert info_path(path).exists()


def test_large_images_make_small_calls():
    def lengths(pixels: list[int]) -> list[int]:
        found = [range(len(pixels))[call] for call in cache_fill.calls(pixels)]
        assert [row for rows in found for row in rows] == list(range(len(pixels)))
        return [len(rows) for rows in found]

    assert lengths([64 * 64] * 2500) == [1024, 1024, 452]
    assert lengths([1024 * 1024] * 100) == [85, 15]  # 85 x 3 MiB < 256 MiB
    assert lengths([30_000**2] * 3) == [1, 1, 1]
    assert lengths([64 * 64] * 3 + [30_000**2] + [0] * 5) == [3, 1, 5]
    assert lengths([1]) == [1]


class Lacking:
    """A decoder that this node cannot run."""

    parallel = "device"

    def __init__(self, threads: int = 1):
        raise Skip("This decoder is not for this node.")


def lose(monkeypatch, *names: str) -> None:
    """Lets this node lack what these decoders need."""
    load = registry.load
    for module in (cache_fill, decoded_cache):
        monkeypatch.setattr(module, "load", lambda kind, name: Lacking if name in names else load(kind, name))
    cache_fill.decoder.cache_clear()


@pytest.mark.parametrize(
    ("lost", "by"), [(["dali_gpu"], "simplejpeg"), (["dali_gpu", "simplejpeg"], "pillow")]
)
def test_another_decoder_builds_where_the_one_asked_for_cannot(
    lost, by, manifest, tmp_path, monkeypatch, caplog
):
    lose(monkeypatch, *lost)
    caplog.set_level(logging.INFO, "gpufeed")
    path = tmp_path / "dali_gpu.npy"
    build_or_fall_back(manifest, "dali_gpu", path, workers=2)
    info = CacheInfo.read(path)
    assert (info.decoder, info.asked_for) == (by, "dali_gpu")
    assert info.decoder_version.startswith(by)
    assert info.because == "This decoder is not for this node."
    assert f"{info.because} {by} builds the cache instead." in caplog.text
    assert np.array_equal(open_cache(path, manifest), by_pillow(manifest))


def test_the_decoder_that_can_build_does(manifest, tmp_path):
    build_or_fall_back(manifest, "opencv", tmp_path / "opencv.npy")
    info = CacheInfo.read(tmp_path / "opencv.npy")
    assert (info.decoder, info.asked_for, info.because) == ("opencv", None, None)


def test_a_sidecar_without_a_tolerance_has_that_of_its_decoder(manifest, tmp_path):
    path = tmp_path / "strips.npy"
    build(manifest, "strips", path)
    said = json.loads(info_path(path).read_text())
    del said["tolerance"]
    info_path(path).write_text(json.dumps(said))
    assert pixel_source("host_cache", None, path).tolerance == Tolerance(140, 4.0)
