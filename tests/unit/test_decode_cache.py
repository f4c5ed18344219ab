"""The cache as each decoder builds it."""

import numpy as np
import pandas as pd
import pytest
from hostile_fixtures import available, decoder_or_sentence, photo, saved
from image_fixtures import MEAN, STD

from gpufeed import cache
from gpufeed.cache import build, info_path, open_cache
from gpufeed.data.manifest import DatasetInfo, Manifest
from gpufeed.decode.pillow import PillowDecoder
from gpufeed.errors import GpufeedError
from gpufeed.registry import DECODERS, load

GPU = [name for name in DECODERS if load("decoder", name).parallel == "device"]


def jpegs(count: int) -> list[bytes]:
    """JPEGs of one size, each with a shade of its own."""
    return [saved("JPEG", photo(24, 32) // 2 + np.uint8(4 * i), quality=90) for i in range(count)]


@pytest.fixture
def manifest(tmp_path):
    """13 JPEGs of 24 x 32 pixels, number 5 a PNG under a JPEG's name, number 7 a CMYK file."""
    from PIL import Image

    files = jpegs(13)
    files[5] = saved("PNG", photo(24, 32))
    files[7] = saved("JPEG", Image.fromarray(photo(24, 32)).convert("CMYK"))
    rows = []
    for sample_id, data in enumerate(files):
        (tmp_path / f"{sample_id}.jpg").write_bytes(data)
        rows.append((f"{sample_id}.jpg", 0, "train", 24, 32, 3))
    table = pd.DataFrame(rows, columns=["path", "label", "split", "height", "width", "channels"])
    return Manifest(tmp_path, DatasetInfo("tiny", "synthetic", ["one"], "test", MEAN, STD), table)


def expected(manifest: Manifest) -> list[np.ndarray]:
    return PillowDecoder().decode([path.read_bytes() for path in manifest.paths()]).images


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", DECODERS)
def test_every_decoder_builds_it(name, workers, manifest, tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "CHUNK", 4)
    monkeypatch.setattr(cache, "BATCH", 5)
    decoder = available(name)
    path = tmp_path / "cache" / f"{name}.npy"
    info = build(manifest, name, path, workers)
    pixels = open_cache(path, manifest, verify=True)
    assert (info.decoder, info.decoder_version) == (name, decoder.version())
    assert pixels.shape == (13, 24, 32, 3)
    wrong = [
        decoder.tolerance.exceeded(found, right)
        for found, right in zip(np.array(pixels), expected(manifest), strict=True)
    ]
    assert wrong == [None] * 13


@pytest.mark.parametrize("name", DECODERS)
def test_processes_only_where_they_help(name, manifest, tmp_path, monkeypatch):
    decoder, started = available(name), []
    pool = cache.ProcessPoolExecutor
    monkeypatch.setattr(cache, "ProcessPoolExecutor", lambda count: started.append(count) or pool(count))
    build(manifest, name, tmp_path / f"{name}.npy", workers=2)
    assert started == ([2] if decoder.parallel == "processes" else [])
    assert cache.decoder(name, 1 if started else 2).threads == (1 if started else 2)
    assert cache.decoder.cache_info().currsize == 1


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


def test_large_images_make_small_tasks():
    assert cache.images_a_task((64, 64), "pillow") == cache.CHUNK
    assert cache.images_a_task((64, 64), "dali_cpu") == cache.BATCH
    assert cache.images_a_task((1024, 1024), "dali_cpu") == 85  # 85 x 3 MiB < 256 MiB
    assert cache.images_a_task((30_000, 30_000), "dali_cpu") == 1
